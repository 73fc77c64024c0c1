"""Write the one or two files of a model: first in a hidden folder, then moved into place together.

A model is one file, or a file and a data file if it has tensors in files or
exceeds protobuf's limit. Data files are copied tensor by tensor.
"""

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import onnx_ir as ir
from google.protobuf.message import EncodeError

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.files.external_data import FileTensor, Tensor, tensors_of
from sdpa_onnx.graph.files.message import reference_to, serialised, write_tensor
from sdpa_onnx.graph.files.whole_file import target_file

__all__ = [
    "LinkedFiles",
    "StagedModel",
    "copied",
    "fits_one_message",
    "linked",
    "staged",
]

# protobuf refuses a message above 2 GiB; larger models keep their tensors in a file beside them.
_PROTOBUF_LIMIT_BYTES = 2**31 - 2**20
# onnx's own threshold: smaller tensors stay in the message.
_SMALLEST_OUTSIDE_BYTES = 1024
# Alignment: large tensors can be mapped alone, small ones read by vector instructions.
_PAGE_BYTES, _LINE_BYTES, _MAPPED_BYTES = 4096, 64, 2**20
_PREFIX = ".sdpa-onnx-"


@dataclass(slots=True)
class StagedModel:
    """A written model that is not in place yet.

    Args:
        path: A file that can be loaded; its data file, if any, lies beside it.
        target: Its final path.
    """

    path: Path
    target: Path

    def commit(self) -> Path:
        """Move it into place, or leave the old files unchanged.

        Raises:
            ModelError: If that fails; the old files are restored.
        """
        try:
            _put(self.path, self.target)
        except OSError as error:
            raise ModelError(f"Cannot write {self.target}: {error.strerror or error}.") from error
        return self.target


@contextlib.contextmanager
def staged(model: ir.Model, path: Path) -> Iterator[StagedModel]:
    """Write a model into a hidden folder beside its path; `StagedModel.commit` moves it into place.

    Args:
        model: The model; it may be read from the very files that are overwritten.
        path: Its final path. Its folder must exist.

    Raises:
        ModelError: If it cannot be written; old files are unchanged, and no new ones are left.
    """
    target = target_file(path, failure=ModelError)
    outside = _needs_data_file(model)
    if outside:
        _check_pair(path, target)
    folder: Path | None = None
    try:
        try:
            folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=_PREFIX))
            _write(model, folder / target.name, outside)
        except OSError as error:
            raise ModelError(f"Cannot write {path}: {error.strerror or error}.") from error
        except (EncodeError, ValueError) as error:
            raise ModelError(f"Cannot write {path}: its graph without tensors is above 2 GiB.") from error
        yield StagedModel(path=folder / target.name, target=target)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _needs_data_file(model: ir.Model) -> list[Tensor]:
    """The tensors for the data file; none = the model is one file."""
    tensors = list({id(tensor): tensor for tensor in tensors_of(model)}.values())
    outside = [tensor for tensor in tensors if isinstance(tensor, FileTensor) and not tensor.within]
    inside = sum(_size(tensor) for tensor in tensors) - sum(tensor.nbytes for tensor in outside)
    if inside <= _PROTOBUF_LIMIT_BYTES:
        return list[Tensor](outside)
    return [tensor for tensor in tensors if _size(tensor) >= _SMALLEST_OUTSIDE_BYTES]


def _size(tensor: Tensor) -> int:
    return 0 if tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED) else tensor.nbytes


def _data_of(path: Path) -> Path:
    return path.with_name(path.name + ".data")


def _check_pair(path: Path, target: Path) -> None:
    if path.is_symlink():
        raise ModelError(
            f"{path} is a link, and this model needs a data file beside it.", hint="Give the name of the file itself."
        )
    data = _data_of(target)
    if data.is_dir() or (data.exists() and not data.is_file()):
        raise ModelError(f"Cannot write {path}: its data file {data} is not a regular file.")


def _write(model: ir.Model, path: Path, outside: list[Tensor]) -> None:
    places: dict[int, ir.ExternalTensor] = {}
    if outside:
        with _data_of(path).open("xb") as file:
            for tensor, offset in _written(outside, file):
                places[id(tensor)] = reference_to(tensor, _data_of(path).name, offset)
    message = serialised(model, places)
    with path.open("xb") as file:
        file.write(message)


def _written(tensors: list[Tensor], file: IO[bytes]) -> Iterator[tuple[Tensor, int]]:
    """Append tensors; shared numbers are written once."""
    known: dict[object, int] = {}
    for tensor in tensors:
        key = (tensor.file.identity, tensor.start, tensor.nbytes) if isinstance(tensor, FileTensor) else id(tensor)
        if key not in known:
            step = _PAGE_BYTES if tensor.nbytes >= _MAPPED_BYTES else _LINE_BYTES
            file.write(b"\0" * (-file.tell() % step))
            known[key] = file.tell()
            write_tensor(tensor, file)
        yield tensor, known[key]


def _put(draft: Path, target: Path) -> None:
    new, data = _data_of(draft), _data_of(target)
    if not new.exists():
        draft.replace(target)
        return
    # An old model with a new data file would be read without an error, so for a moment there is no model at all.
    old = [place for place in (target, data) if os.path.lexists(place)] if os.path.lexists(data) else []
    aside = {place: draft.with_name(f"{_PREFIX}{number}") for number, place in enumerate(old)}
    moved: list[Path] = []
    try:
        for place, away in aside.items():
            place.replace(away)
            moved.append(place)
        new.replace(data)
        draft.replace(target)
    except BaseException:
        if not old and not new.exists():  # it was moved, and there was no old one
            data.unlink(missing_ok=True)
        for place in reversed(moved):
            aside[place].replace(place)
        raise


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class LinkedFiles:
    """A model for a program that reads data files itself.

    Args:
        message: The graph. Tensors may be references into `folder`.
        folder: The folder of the data files; None = the message is complete.
    """

    message: bytes
    folder: Path | None = None


def fits_one_message(model: ir.Model) -> bool:
    """Whether all tensors fit into one message, by protobuf's limit."""
    return sum(_size(tensor) for tensor in tensors_of(model)) <= _PROTOBUF_LIMIT_BYTES


@contextlib.contextmanager
def copied(model: ir.Model) -> Iterator[Path]:
    """A copy of a model, with its data file, in a temporary folder until the block ends.

    Raises:
        ModelError: If it cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        path = Path(folder) / "model.onnx"
        with staged(model, path) as draft:
            draft.commit()
        yield path


def linked(model: ir.Model) -> LinkedFiles:
    """The message of a model whose tensors stay in their files.

    Tensors from several folders, from a file that was replaced, or in memory and
    above protobuf's limit are copied into a temporary folder, which is deleted with
    the result.

    Raises:
        ModelError: If a file was modified after it was opened, or the copy cannot be written.
    """
    tensors = [tensor for tensor in tensors_of(model) if isinstance(tensor, FileTensor)]
    folders = {Path(tensor.base_dir) for tensor in tensors}
    inside = sum(_size(tensor) for tensor in tensors_of(model) if not isinstance(tensor, FileTensor))
    files = {tensor.file for tensor in tensors}
    if changed := next((file for file in files if not file.is_intact()), None):
        raise ModelError(f"{changed.path} was changed after it was read.", hint="Read the model again.")
    if len(folders) > 1 or inside > _PROTOBUF_LIMIT_BYTES or not all(file.is_current() for file in files):
        return _copied(model)
    places = {id(tensor): reference_to(tensor, _name(tensor), tensor.start) for tensor in tensors}
    return LinkedFiles(message=serialised(model, places), folder=next(iter(folders), None))


def _name(tensor: FileTensor) -> str:
    return tensor.file.path.relative_to(tensor.base_dir).as_posix()


def _copied(model: ir.Model) -> LinkedFiles:
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(copied(model))
        found = LinkedFiles(message=path.read_bytes(), folder=path.parent)
        weakref.finalize(found, stack.pop_all().close)
    return found
