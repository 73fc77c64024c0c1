"""Every file that is no usable model, by the whole text that the user reads."""

import contextlib
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import SITES_KEY, load_model
from tests.graph.models import bare, inner_attention, model_of, product

_NO_MODEL = "is not an ONNX model. It may be cut short, or of another kind."


def _error(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(path)
    return str(caught.value)


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_missing_file(tmp_path: Path) -> None:
    """A path without a file is told as such."""
    path = tmp_path / "no.onnx"
    assert _error(path) == f"Cannot read {path}: there is no such file."


def test_path_below_a_file(tmp_path: Path) -> None:
    """A path that goes through a regular file is told in the system's words."""
    path = _write(tmp_path / "file", b"x") / "m.onnx"
    assert _error(path) == f"Cannot read {path}: Not a directory."


def test_directory(tmp_path: Path) -> None:
    """A directory is no model."""
    assert _error(tmp_path) == f"{tmp_path} is a directory. Give the name of an .onnx file."


def test_empty_file(tmp_path: Path) -> None:
    """An empty file, which protobuf would take for a model without content, is refused."""
    path = _write(tmp_path / "empty.onnx", b"")
    assert _error(path) == f"{path} is empty. Give an .onnx file."


@pytest.mark.parametrize(
    "data",
    [b"hello world\n", b"{}", b"\x00", b"\x00" * 100, b"\x08\x0a", b"\xff" * 64, b"PK\x03\x04", "säge\n".encode()],
    ids=["text", "json", "zero", "zeros", "only-ir-version", "ones", "zip", "utf-8"],
)
def test_another_kind_of_file(tmp_path: Path, data: bytes) -> None:
    """Text and other formats renamed to .onnx are refused."""
    path = _write(tmp_path / "other.onnx", data)
    assert _error(path) == f"{path} {_NO_MODEL}"


def test_cut_short_at_every_byte(tmp_path: Path) -> None:
    """A bare attention file cut after any byte is refused; the whole file is not."""
    data = bare().to_bytes()
    path = tmp_path / "cut.onnx"
    for size in range(1, len(data)):
        assert _error(_write(path, data[:size])) == f"{path} {_NO_MODEL}", size
    assert load_model(_write(path, data)).node_counts() == {"Attention": 1}


def test_random_bytes(tmp_path: Path) -> None:
    """Random bytes of any length are refused, whatever protobuf makes of them."""
    rng = np.random.default_rng(0)
    path = tmp_path / "random.onnx"
    for _ in range(200):
        assert _error(_write(path, rng.bytes(int(rng.integers(1, 500))))) == f"{path} {_NO_MODEL}"


def test_damaged_bytes_raise_nothing_but_our_error(tmp_path: Path) -> None:
    """A model with one byte changed loads or is refused in our words; it never escapes as another error."""
    data = bare().to_bytes()
    path = tmp_path / "damaged.onnx"
    escaped: dict[str, int] = {}
    rng = np.random.default_rng(1)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= int(rng.integers(1, 256))
        try:
            load_model(_write(path, bytes(damaged)))
        except ModelError:
            continue
        except Exception as error:  # noqa: BLE001  # the fault that this test looks for
            escaped.setdefault(type(error).__name__, position)
    assert escaped == {}


def test_attention_with_too_few_inputs(tmp_path: Path) -> None:
    """An Attention node that lacks its value is not described, and loading does not fail on it."""
    size = ["batch_size", 2, "q_seq_len", 8]
    nodes = [helper.make_node("Attention", ["x", "x"], ["y"], name="attend")]
    path = tmp_path / "two.onnx"
    onnx.save(model_of(nodes, {"x": size}, {"y": size}), path)
    with contextlib.suppress(ModelError):
        assert load_model(path).sites == ()


def _with_external_data(path: Path) -> Path:
    onnx.save(product(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path.parent / "weights.bin"


def test_missing_tensor_file(tmp_path: Path) -> None:
    """A model whose tensor file is gone is told with the name of that file."""
    path = tmp_path / "outside.onnx"
    weights = _with_external_data(path)
    weights.unlink()
    assert _error(path) == f"Cannot read {path}: its tensor file {weights} is missing."


def test_tensor_file_is_read_with_the_model(tmp_path: Path) -> None:
    """What a runtime gets has the weights in it: the bytes stand alone."""
    path = tmp_path / "outside.onnx"
    weights = _with_external_data(path)
    data = load_model(path).to_bytes()
    weights.unlink()
    tensor = onnx.load_from_string(data).graph.initializer[0]
    assert np.array_equal(onnx.numpy_helper.to_array(tensor), np.arange(16, dtype=np.float32).reshape(4, 4))


def test_damaged_metadata(tmp_path: Path) -> None:
    """Metadata of ours that is no JSON of sites is told with its key."""
    model = bare()
    model.ir.metadata_props[SITES_KEY] = '[{"name": 3}]'
    path = model.save(tmp_path / "m.onnx")
    assert _error(path) == (
        f"The metadata '{SITES_KEY}' of {path} cannot be read: Expected `str`, got `int` - at `$[0].name`."
    )


@pytest.mark.parametrize("kind", ["path", "text", "proto", "ir", "model"])
def test_every_source_gives_the_same_model(tmp_path: Path, kind: str) -> None:
    """A path, its text, a proto, an IR model and an OnnxModel all load to the same graph and sites."""
    model = bare()
    path = model.save(tmp_path / "m.onnx")
    sources = {"path": path, "text": str(path), "proto": onnx.load(path), "ir": ir.load(path), "model": model}
    loaded = load_model(sources[kind])
    assert (loaded.sites, loaded.content_hash()) == (model.sites, model.content_hash())


def test_figures_of_a_loaded_model() -> None:
    """Opset, names, node counts and the site are read off the graph."""
    model = load_model(inner_attention())
    assert model.opset == 23
    assert (model.input_names, model.output_names) == (("x",), ("y",))
    assert model.node_counts() == {"MatMul": 1, "Attention": 1, "Add": 1}
    assert [(site.name, site.query, site.key, site.output) for site in model.sites] == [("attend", "q", "x", "inner")]
