"""A data file of a model: opened once, read on demand, never outside the model's folder.

Knows no tensors; writes only copies into files that are already open.
"""

import mmap
import os
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.files.whole_file import open_files_hint

__all__ = ["DataFile", "open_beside"]

# Smaller reads are copied, larger ones mapped: mapped pages are no anonymous memory.
_MAPPED_BYTES = 2**20
# Chunk of a copy where the kernel cannot copy between files.
_CHUNK_BYTES = 2**23


class DataFile:
    """An open data file. It stays readable when another file takes its name.

    Raises:
        OSError: If it cannot be opened.
    """

    __slots__ = ("__weakref__", "_descriptor", "_map", "_seen", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self._seen = os.fstat(self._descriptor)
        self._map: mmap.mmap | None = None

    @property
    def size(self) -> int:
        """Bytes at the time of opening."""
        return self._seen.st_size

    @property
    def is_regular(self) -> bool:
        """Whether it is a regular file: no folder, device or pipe."""
        return stat.S_ISREG(self._seen.st_mode)

    @property
    def links(self) -> int:
        """Number of names (hard links) of the file."""
        return self._seen.st_nlink

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode, the same for every name of the file."""
        return self._seen.st_dev, self._seen.st_ino

    def is_intact(self) -> bool:
        """Whether it is unchanged since it was opened."""
        return _version(os.fstat(self._descriptor)) == _version(self._seen)

    def is_current(self) -> bool:
        """Whether its path still leads to it, unchanged, so that another program reads the same numbers."""
        try:
            now = self.path.stat()
        except OSError:
            return False
        return _version(now) == _version(self._seen)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes at an offset.

        Raises:
            ModelError: If the file became shorter since it was opened.
        """
        parts, missing = [], length
        while missing:
            part = os.pread(self._descriptor, min(missing, _CHUNK_BYTES), offset + length - missing)
            if not part:
                raise self._was_cut()
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def view(self, offset: int, length: int) -> memoryview:
        """Bytes at an offset, mapped from 1 MiB on.

        Raises:
            ModelError: If the file became shorter since it was opened.
        """
        if length < _MAPPED_BYTES:
            return memoryview(self.read(offset, length))
        if os.fstat(self._descriptor).st_size < offset + length:
            raise self._was_cut()
        if self._map is None:
            self._map = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        return memoryview(self._map)[offset : offset + length]

    def chunks(self, offset: int, length: int) -> Iterator[bytes]:
        """The same bytes in chunks.

        Raises:
            ModelError: If the file became shorter since it was opened.
        """
        for start in range(offset, offset + length, _CHUNK_BYTES):
            yield self.read(start, min(_CHUNK_BYTES, offset + length - start))

    def copy_to(self, out: IO[bytes], offset: int, length: int) -> None:
        """Append bytes to an open file, by the kernel where possible.

        Raises:
            ModelError: If the file became shorter since it was opened.
            OSError: If nothing can be written.
        """
        out.flush()
        done = _copied_by_kernel(self._descriptor, out.fileno(), offset, length)
        for chunk in self.chunks(offset + done, length - done):
            out.write(chunk)

    def _was_cut(self) -> ModelError:
        return ModelError(f"Cannot read {self.path}: it became shorter while it was in use.")


def open_beside(folder: Path, location: str, *, who: str) -> DataFile:
    """Open a data file of a model.

    Args:
        folder: The model's folder.
        location: Path in that folder, as given in the model.
        who: How an error begins: "Cannot read m.onnx".

    Raises:
        ModelError: If it is missing, no regular file, has a second hard link, or lies elsewhere after following links.
    """
    path = folder / location
    try:
        if not location or "\0" in location:
            raise ModelError(f"{who}: a tensor names the file {location!r}, which is not a valid name.")
        if Path(location).is_absolute() or not path.resolve().is_relative_to(folder.resolve()):
            raise ModelError(
                f"{who}: a tensor names the file {location!r} outside of the model's folder.",
                hint="Put it beside the model; files elsewhere are never read.",
            )
        if not path.exists():
            raise ModelError(f"{who}: its tensor file {path} is missing.")
        # Checked before opening: opening a device can have side effects.
        file = DataFile(path.resolve()) if path.is_file() else None
    except (OSError, RuntimeError) as error:  # RuntimeError: circular links, before Python 3.13
        text = f"{who}: its tensor file {path} cannot be opened: {_reason(error)}."
        raise ModelError(text, hint=open_files_hint(error)) from error
    if file is None or not file.is_regular:
        raise ModelError(f"{who}: its tensor file {path} is not a regular file.")
    if file.links > 1:
        raise ModelError(
            f"{who}: its tensor file {path} has a second name elsewhere (a hard link).",
            hint="Copy the file; one with two names may be another's.",
        )
    return file


def _version(seen: os.stat_result) -> tuple[int, int, int, int]:
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def _copied_by_kernel(source: int, target: int, offset: int, length: int) -> int:
    """Number of bytes that the kernel copied; the caller writes the rest, and sees a full disk."""
    copy = getattr(os, "copy_file_range", None)
    done = 0
    try:
        while copy is not None and done < length:
            count = copy(source, target, min(length - done, 2**30), offset_src=offset + done)
            if not count:
                break
            done += count
    except OSError:
        pass
    return done


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
