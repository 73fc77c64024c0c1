"""A model as a file whose external data lies beside it, for runtimes that read nothing else; or as onnx reads it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["data_files", "model_file", "model_proto"]

# An entry of `TensorProto.external_data`: key "location", then its value behind one or two bytes of length.
_LOCATION = re.compile(rb"\x0a\x08location\x12(?:([\x00-\x7f])|([\x80-\xff])([\x01-\x7f]))")


@contextlib.contextmanager
def model_file(job: dict[str, Any]) -> Iterator[str]:
    """Path of the model of a job; what had to be written for it is removed afterwards.

    Data files are hard links, or copies on another file system: tract, nxrt and onnx refuse symbolic links.
    """
    model: str | bytes = job["model"]
    folder: str | None = job["folder"]
    if not isinstance(model, bytes):
        if folder is None or Path(folder).resolve() == Path(model).resolve().parent:
            yield model
            return
        model = Path(model).read_bytes()
    with tempfile.TemporaryDirectory() as own:
        (Path(own) / "model.onnx").write_bytes(model)
        if folder is not None:
            for name in data_files(model):
                _link(Path(folder) / name, Path(own) / name)
        yield str(Path(own) / "model.onnx")


def model_proto(job: dict[str, Any]) -> Any:
    """The model of a job with its data in memory; for runtimes that need onnx themselves."""
    import onnx

    model: str | bytes = job["model"]
    folder: str | None = job["folder"]
    if isinstance(model, bytes):
        proto = onnx.load_from_string(model)
    else:
        proto = onnx.load(model, load_external_data=False)
        folder = folder or str(Path(model).resolve().parent)
    if folder is not None:
        onnx.load_external_data_for_model(proto, folder)
    return proto


def data_files(content: bytes) -> list[str]:
    """Locations of the external data of a model, relative to its folder; one that leads out of it is left out."""
    found = set()
    for match in _LOCATION.finditer(content):
        short, low, high = match.groups()
        length = ord(short) if short is not None else (ord(low) & 0x7F) | (ord(high) << 7)
        found.add(os.path.normpath(content[match.end() : match.end() + length].decode("utf-8", "replace")))
    return sorted(name for name in found if not name.startswith((os.pardir, os.sep)))


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():  # what is missing is reported by the runtime, which knows whether it needs it
        try:
            os.link(source.resolve(), target)
        except OSError:
            shutil.copyfile(source, target)
