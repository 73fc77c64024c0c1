"""A model with its data file is saved whole or not at all, never mixed with the old one, also over itself."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.files import data_file, saved_files
from sdpa_onnx.graph.files.data_file import DataFile
from sdpa_onnx.graph.files.external_data import FileTensor, tensors_of
from sdpa_onnx.graph.files.saved_files import linked, staged
from sdpa_onnx.graph.model import OnnxModel, load_model
from tests.graph.models import bare
from tests.graph.outside import DATA, inside, write_outside


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _source(folder: Path) -> OnnxModel:
    (folder / "source").mkdir()
    return load_model(write_outside(folder / "source"))


def _offsets(model: OnnxModel) -> list[int]:
    return [tensor.start for tensor in tensors_of(model.ir) if isinstance(tensor, FileTensor)]


def test_two_files(tmp_path: Path) -> None:
    """The data file is named after the model, onnx takes the pair, and all is as it was."""
    model = _source(tmp_path)
    path = model.save(tmp_path / "m.onnx")
    assert _names(tmp_path) == ["m.onnx", "m.onnx.data", "source"]
    onnx.checker.check_model(str(path))
    assert load_model(path).content_hash() == model.content_hash()
    usual = tmp_path / "usual"
    usual.touch()
    assert {place.stat().st_mode for place in (path, tmp_path / "m.onnx.data")} == {usual.stat().st_mode}


def test_places_in_the_data_file(tmp_path: Path) -> None:
    """Tensors begin at multiples of 64 bytes; one that is used twice is written once."""
    saved = load_model(_source(tmp_path).save(tmp_path / "m.onnx"))
    offsets = _offsets(saved)
    assert len(offsets) == 5
    assert len(set(offsets)) == 4
    assert {offset % 64 for offset in offsets} == {0}
    assert (tmp_path / "m.onnx.data").stat().st_size == 4096 + 3 * 2048


def test_large_tensors_begin_at_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a runtime can map each by itself."""
    monkeypatch.setattr(saved_files, "_MAPPED_BYTES", 2048)
    saved = load_model(_source(tmp_path).save(tmp_path / "m.onnx"))
    assert {offset % 4096 for offset in _offsets(saved)} == {0}


def test_over_itself(tmp_path: Path) -> None:
    """The files that are read from may be those that are replaced, again and again; both models stay right."""
    path = _source(tmp_path).save(tmp_path / "m.onnx")
    model = load_model(path)
    digest = model.content_hash()
    for _ in range(3):
        load_model(path).save(path)
    assert [load_model(path).content_hash(), model.content_hash()] == [digest, digest]
    assert _names(tmp_path) == ["m.onnx", "m.onnx.data", "source"]


def test_without_the_kernels_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system cannot copy between files by itself, the bytes are read and written in pieces."""

    def refuse(*arguments: object, **options: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    monkeypatch.setattr(data_file, "_CHUNK_BYTES", 1000)
    model = _source(tmp_path)
    assert load_model(model.save(tmp_path / "m.onnx")).content_hash() == model.content_hash()


def test_kernel_copies_less_than_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves is copied by us, from where it stopped."""
    real = os.copy_file_range
    left = [700, 0]

    def short(source: int, target: int, count: int, **options: int) -> int:
        return real(source, target, min(count, left.pop(0)), **options) if left else 0

    monkeypatch.setattr(os, "copy_file_range", short)
    model = _source(tmp_path)
    assert load_model(model.save(tmp_path / "m.onnx")).content_hash() == model.content_hash()
    assert left == []


def test_above_the_limit_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in memory that no message can hold gets a data file; small tensors stay in the graph."""
    model = load_model(inside())
    monkeypatch.setattr(saved_files, "_PROTOBUF_LIMIT_BYTES", 5000)
    path = model.save(tmp_path / "m.onnx")
    assert _names(tmp_path) == ["m.onnx", "m.onnx.data"]
    assert load_model(path).content_hash() == model.content_hash()


def _old(folder: Path) -> dict[str, bytes]:
    """An older pair of files."""
    (folder / "m.onnx").write_bytes(b"old graph")
    (folder / "m.onnx.data").write_bytes(b"old numbers")
    return {"m.onnx": b"old graph", "m.onnx.data": b"old numbers"}


def _full(*arguments: object, **options: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["data", "graph"])
def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """When the disk fills up in either file both old ones stay as they are and nothing is left."""
    model, old = _source(tmp_path), _old(tmp_path)
    if where == "data":
        monkeypatch.setattr(DataFile, "copy_to", _full)
    else:
        monkeypatch.setattr(saved_files, "serialised", _full)
    with pytest.raises(ModelError) as caught:
        model.save(tmp_path / "m.onnx")
    assert str(caught.value) == f"Cannot write {tmp_path / 'm.onnx'}: No space left on device."
    assert _names(tmp_path) == ["m.onnx", "m.onnx.data", "source"]
    assert {name: (tmp_path / name).read_bytes() for name in old} == old


@pytest.mark.parametrize("failing", range(4))
@pytest.mark.parametrize("with_old", [True, False])
def test_failing_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, with_old: bool) -> None:
    """Whichever rename fails, what was there is there again: no graph ever stands beside other numbers."""
    model, old = _source(tmp_path), _old(tmp_path) if with_old else {}
    real = Path.replace
    done: list[Path] = []
    mixed: list[tuple[bytes, bytes]] = []

    def watched(self: Path, target: Path) -> Path:
        if len(done) == failing and not _is_back(self):
            done.append(self)
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        done.append(self)
        moved = real(self, target)
        graph, data = tmp_path / "m.onnx", tmp_path / "m.onnx.data"
        if graph.exists() and data.exists():
            mixed.append((graph.read_bytes()[:9], data.read_bytes()[:11]))
        return moved

    def _is_back(path: Path) -> bool:
        return any(path == other for other in done)

    monkeypatch.setattr(Path, "replace", watched)
    if not with_old and failing >= 2:
        model.save(tmp_path / "m.onnx")
        return
    with pytest.raises(ModelError, match=r"^Cannot write .*m\.onnx: Permission denied\.$"):
        model.save(tmp_path / "m.onnx")
    assert {name: (tmp_path / name).read_bytes() for name in old} == old
    assert _names(tmp_path) == [*sorted(old), "source"]
    assert {pair for pair in mixed if (pair[0] == b"old graph") != (pair[1] == b"old numbers")} == set()


def _link(folder: Path) -> None:
    (folder / "real.onnx").touch()
    (folder / "m.onnx").symlink_to(folder / "real.onnx")


TARGETS: dict[str, tuple[Callable[[Path], object], str]] = {
    "link": (_link, "{path} is a link, and this model needs a data file beside it. Give the name of the file itself."),
    "folder": (
        lambda folder: (folder / "m.onnx.data").mkdir(),
        "Cannot write {path}: its data file {path}.data is not a regular file.",
    ),
    "pipe": (
        lambda folder: os.mkfifo(folder / "m.onnx.data"),
        "Cannot write {path}: its data file {path}.data is not a regular file.",
    ),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_places_that_are_refused(tmp_path: Path, kind: str) -> None:
    """A link, whose reader would look for the numbers elsewhere, and what is not a regular file stay as they are."""
    prepare, text = TARGETS[kind]
    model = _source(tmp_path)
    prepare(tmp_path)
    before = _names(tmp_path)
    with pytest.raises(ModelError) as caught:
        model.save(tmp_path / "m.onnx")
    assert str(caught.value) == text.format(path=tmp_path / "m.onnx")
    assert _names(tmp_path) == before


def test_data_file_is_a_link(tmp_path: Path) -> None:
    """Numbers are never written through a link that nobody named: the link is replaced, its target stays."""
    model = _source(tmp_path)
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "m.onnx.data").symlink_to(tmp_path / "other")
    path = model.save(tmp_path / "m.onnx")
    assert load_model(path).content_hash() == model.content_hash()
    assert ((tmp_path / "other").read_bytes(), (tmp_path / "m.onnx.data").is_symlink()) == (b"other", False)


@pytest.mark.parametrize("small", [True, False])
def test_draft_is_not_in_its_place_before_it_is_committed(tmp_path: Path, small: bool) -> None:
    """It can be loaded and judged; when the block ends without a commit, or by an error, nothing is left of it."""
    model = bare() if small else _source(tmp_path)
    before = _names(tmp_path)
    path = tmp_path / "m.onnx"
    with staged(model.ir, path) as draft:
        assert load_model(draft.path).content_hash() == model.content_hash()
        assert not path.exists()
    with pytest.raises(KeyError), staged(model.ir, path):
        raise KeyError
    assert _names(tmp_path) == before
    with staged(model.ir, path) as draft:
        assert draft.commit() == path
    assert load_model(path).content_hash() == model.content_hash()
    assert _names(tmp_path) == sorted([*before, "m.onnx", *([] if small else ["m.onnx.data"])])


def test_linked_message(tmp_path: Path) -> None:
    """References of a tapped copy lead to the files that were read, from the model's folder."""
    model = _source(tmp_path)
    found = model.tapped(["sum"]).linked()
    assert found.folder == (tmp_path / "source").resolve()
    again = load_model(onnx.load_from_string(found.message), folder=found.folder)
    assert again.content_hash() == model.tapped(["sum"]).content_hash()
    assert len(found.message) < 2048


def test_linked_message_without_files() -> None:
    """A model in memory stands alone."""
    model = bare()
    assert (model.linked().message, model.linked().folder) == (model.to_bytes(), None)


def test_linked_message_of_two_folders(tmp_path: Path) -> None:
    """Tensors of two models are copied into one folder, which goes when the message goes."""
    model = _source(tmp_path)
    (tmp_path / "second").mkdir()
    second = load_model(write_outside(tmp_path / "second"))
    value, other = model.ir.graph.initializers["weight"], second.ir.graph.initializers["weight"]
    value.const_value = other.const_value
    found = linked(model.ir)
    folder = found.folder
    assert folder is not None
    assert _names(folder) == ["model.onnx", "model.onnx.data"]
    assert load_model(folder / "model.onnx").content_hash() == model.content_hash()
    del found
    assert not folder.exists()


def test_numbers_of_a_replaced_file(tmp_path: Path) -> None:
    """A model whose data file was replaced since is linked to a copy of what was read."""
    model = _source(tmp_path)
    digest = model.content_hash()
    data = tmp_path / "source" / DATA
    (tmp_path / "new").write_bytes(np.zeros(10_000, np.float32).tobytes())
    (tmp_path / "new").replace(data)
    found = model.linked()
    assert found.folder != data.parent
    assert load_model(onnx.load_from_string(found.message), folder=found.folder).content_hash() == digest
