"""The container: saved whole or not at all, tapped on a copy, hashed by content."""

import dataclasses
import errno
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.files.whole_file import check_target
from sdpa_onnx.graph.model import OnnxModel, load_model
from tests.graph.models import SPECS, bare, inner_attention


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_saved_file_is_the_model(tmp_path: Path) -> None:
    """The file holds exactly the serialised bytes, readable by others, and nothing lies beside it."""
    model = bare()
    path = model.save(tmp_path / "m.onnx")
    assert path.read_bytes() == model.to_bytes()
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert _names(tmp_path) == ["m.onnx"]


def test_save_replaces_the_old_file(tmp_path: Path) -> None:
    """An old file is replaced as a whole."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"x" * 10_000)
    bare().save(path)
    assert path.read_bytes() == bare().to_bytes()


def test_save_into_a_missing_folder(tmp_path: Path) -> None:
    """A folder that is not there is one sentence, and is not made."""
    path = tmp_path / "no" / "m.onnx"
    with pytest.raises(ModelError) as caught:
        bare().save(path)
    assert str(caught.value) == f"Cannot write {path}: No such file or directory."
    assert _names(tmp_path) == []


def test_save_below_a_file(tmp_path: Path) -> None:
    """A path through a regular file, which not even root can write, is one sentence."""
    (tmp_path / "file").write_bytes(b"x")
    path = tmp_path / "file" / "m.onnx"
    with pytest.raises(ModelError) as caught:
        bare().save(path)
    assert str(caught.value) == f"Cannot write {path}: Not a directory."


def test_save_onto_a_directory(tmp_path: Path) -> None:
    """A directory of that name stays, and is named."""
    with pytest.raises(ModelError) as caught:
        bare().save(tmp_path)
    assert str(caught.value) == f"{tmp_path} is a directory. Give the name of a file."


class _FullDisk:
    """A temporary file that takes some bytes and then has no space left."""

    def __init__(self, *arguments: object, **options: object) -> None:
        self._file = _NAMED(*arguments, **options)  # type: ignore[call-overload]
        self.name = self._file.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> int:
        self._file.write(data[:7])
        self._file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_NAMED = tempfile.NamedTemporaryFile


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk fills up half-way the old file stays whole and no temporary file is left."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", _FullDisk)
    with pytest.raises(ModelError) as caught:
        bare().save(path)
    assert str(caught.value) == f"Cannot write {path}: No space left on device."
    assert (_names(tmp_path), path.read_bytes()) == (["m.onnx"], b"old")


def test_failing_rename_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last step fails the temporary file is taken away."""

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(ModelError, match=r"^Cannot write .*: Permission denied\.$"):
        bare().save(tmp_path / "m.onnx")
    assert _names(tmp_path) == []


def test_tapped_adds_what_the_sites_name() -> None:
    """Inner query and output become outputs; the graph's own input, which is key and value, does not."""
    model = load_model(inner_attention())
    before = model.to_bytes()
    tapped = model.tapped()
    assert tapped.output_names == ("y", "q", "inner")
    assert (model.output_names, model.to_bytes()) == (("y",), before)
    assert tapped.sites == model.sites


def test_tapped_runs_and_gives_the_same(tmp_path: Path) -> None:
    """The tapped copy is valid ONNX."""
    proto = onnx.load_from_string(load_model(inner_attention()).tapped().to_bytes())
    onnx.checker.check_model(proto, full_check=True)


def test_tapping_a_bare_model_changes_nothing() -> None:
    """Inputs and outputs of the graph are there already."""
    model = bare(SPECS["past"])
    assert model.tapped().output_names == model.output_names == ("Y", "present_key", "present_value")


def test_tapped_by_name() -> None:
    """Given names are added instead, each once."""
    assert load_model(inner_attention()).tapped(["q", "q"]).output_names == ("y", "q")


@pytest.mark.parametrize(("saved", "who"), [(True, "{path}"), (False, "the model")])
def test_metadata_that_names_a_missing_value(tmp_path: Path, saved: bool, who: str) -> None:
    """A graph that was changed after its export is told with the value that is gone."""
    model = load_model(inner_attention())
    path = tmp_path / "m.onnx"
    (site,) = model.sites
    broken = dataclasses.replace(model, sites=(dataclasses.replace(site, query="gone"),), path=path if saved else None)
    with pytest.raises(ModelError) as caught:
        broken.tapped()
    assert str(caught.value) == (
        f"The metadata of {who.format(path=path)} names a value 'gone' that is not in the graph. "
        "The file was changed after its export; export it again."
    )


def test_content_hash_is_stable(tmp_path: Path) -> None:
    """Building twice, saving and loading keep the hash; another spec has another."""
    model = bare()
    loaded = load_model(model.save(tmp_path / "m.onnx"))
    assert loaded.content_hash() == bare().content_hash() == model.content_hash()
    assert len({_of(name).content_hash() for name in SPECS}) == len(SPECS)


def _of(name: str) -> OnnxModel:
    return bare(SPECS[name], opset=25)


def test_content_hash_is_the_same_in_another_process() -> None:
    """Run folders name graphs by this hash, so nothing of the process may enter it, not even hash seeds."""
    program = "from tests.graph.models import bare; print(bare().content_hash())"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout == bare().content_hash() + "\n"


def test_repr_is_one_line() -> None:
    """A console shows figures and not the graph."""
    assert repr(bare()) == "OnnxModel(opset 23, 1 attention, 1 node, 0 B)"
    graph = bare().ir.clone()
    weights = ir.tensor(np.zeros(300_000, np.float32), name="w")
    graph.graph.initializers["w"] = ir.Value(name="w", const_value=weights)
    assert repr(load_model(graph)) == "OnnxModel(opset 23, 1 attention, 1 node, 1.2 MB)"


def test_folder_in_which_no_file_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions do not tell, such as in /proc: making a file does, before the work starts, and leaves none."""
    check_target(tmp_path / "a.onnx", failure=ModelError)
    assert not list(tmp_path.iterdir())

    def refuse(**_: object) -> None:
        raise OSError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ModelError) as caught:
        check_target(tmp_path / "a.onnx", failure=ModelError)
    assert str(caught.value) == f"Cannot write {tmp_path / 'a.onnx'}: No such file or directory."
