"""Models with tensors in files run on every runtime, tapped, from folders that cannot be written, after a change."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.files import saved_files
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from tests.graph.outside import DATA, WIDTH, expected, write_outside

_RUNTIMES = ("ort-cpu", "onnx-reference", "openvino")


def _worst(model: OnnxModel, runtime: str, output: str = "y") -> float:
    x = np.random.default_rng(0).standard_normal((16, WIDTH)).astype(np.float32)
    with get_runtime(runtime).load(model, LoadOptions()) as session:
        found = session.run({"x": x, "which": np.array(True)})  # a number, no argument
        assert session.ran().node_counts
    assert output in found
    return float(np.abs(found["y"] - expected(x)).max())


def _written(folder: Path, runtime: str) -> Path:
    """OpenVINO knows no functions of a model."""
    return write_outside(folder, with_function=runtime != "openvino")


def _tapped(model: OnnxModel, _folder: Path) -> OnnxModel:
    return model.tapped(["sum"])


def _saved(model: OnnxModel, folder: Path) -> OnnxModel:
    return load_model(model.save(folder / "saved.onnx"))


def _replaced(model: OnnxModel, folder: Path) -> OnnxModel:
    """The model as it was read, its files taken by others since."""
    (folder / "new").write_bytes(bytes(100_000))
    (folder / "new").replace(folder / DATA)
    return model


def _read(model: OnnxModel, _folder: Path) -> OnnxModel:
    return model


WAYS: dict[str, Callable[[OnnxModel, Path], OnnxModel]] = {
    "read": _read,
    "tapped": _tapped,
    "saved": _saved,
    "replaced": _replaced,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("runtime", _RUNTIMES)
def test_numbers_in_files_are_found(tmp_path: Path, runtime: str, way: str) -> None:
    """Every tensor of graph, branch, constant and function arrives: the result is within a few roundings."""
    model = WAYS[way](load_model(_written(tmp_path, runtime)), tmp_path)
    assert _worst(model, runtime, "sum" if way == "tapped" else "y") < 1e-4


@pytest.mark.parametrize("runtime", _RUNTIMES)
def test_nothing_is_written_into_the_models_folder(tmp_path: Path, runtime: str) -> None:
    """What a runtime needs beside the graph is not put there, so that the folder may be read-only."""
    path = _written(tmp_path, runtime)
    before = {place: place.stat().st_mtime_ns for place in (tmp_path, *tmp_path.iterdir())}
    _worst(load_model(path).tapped(["sum"]), runtime)
    assert {place: place.stat().st_mtime_ns for place in (tmp_path, *tmp_path.iterdir())} == before


@pytest.mark.parametrize("runtime", _RUNTIMES)
def test_above_the_limit_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
    """A model that no message can hold runs from a copy in files; here the limit is lowered."""
    inside = load_model(load_model(_written(tmp_path, runtime)).to_proto())
    monkeypatch.setattr(saved_files, "_PROTOBUF_LIMIT_BYTES", 5000)
    assert not inside.fits_one_message
    assert _worst(inside, runtime) < 1e-4
    (tmp_path / DATA).unlink()
    assert _worst(inside, runtime) < 1e-4


def test_file_that_was_written_into(tmp_path: Path) -> None:
    """Numbers that changed under the model are not run as if they were the model's."""
    model = load_model(write_outside(tmp_path))
    data = tmp_path / DATA
    with data.open("r+b") as file:
        file.write(bytes(5000))
    with pytest.raises(ModelError) as caught:
        get_runtime("ort-cpu").load(model, LoadOptions())
    assert str(caught.value) == f"{data.resolve()} was changed after it was read. Read the model again."
