"""Temporary folders that a process holds, so that the next one can remove those of processes that were killed.

Each has a file that its process keeps locked; the system releases the lock when the process ends. A folder without
that file is never removed: it belongs to somebody else, or is just being made.
"""

import contextlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["HeldFolder", "remove_left_over"]

_PREFIX = "sdpa-onnx-"
_LOCK = ".held"
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class HeldFolder:
    """A temporary folder; a context manager that removes it. Like `tempfile.TemporaryDirectory` otherwise.

    Args:
        purpose: One word in its name.
    """

    def __init__(self, purpose: str) -> None:
        self.name = tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-")
        self._finalizer = weakref.finalize(self, _remove, self.name, _held(Path(self.name)))

    def cleanup(self) -> None:
        """Remove the folder."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()


def remove_left_over(folder: Path | None = None) -> None:
    """Remove the folders of processes that have ended; those of living processes and of other users stay.

    Args:
        folder: Where they are; None = the system's folder for temporary files.
    """
    with contextlib.suppress(OSError):
        for path in (folder or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
            if path.is_symlink() or not path.is_dir():
                continue
            handle = _locked(path / _LOCK)
            if handle is not None:
                _remove(str(path), handle)


def _held(folder: Path) -> int | None:
    """Our lock; it gets its name when it is locked, so that nobody takes the folder for left over."""
    with contextlib.suppress(OSError):
        draft = folder / f"{_LOCK}.draft"
        os.close(os.open(draft, _OPEN | os.O_CREAT | os.O_EXCL, 0o600))
        handle = _locked(draft)
        if handle is not None:
            draft.rename(folder / _LOCK)
        return handle
    return None


def _locked(file: Path) -> int | None:
    """An open file that only this process has locked, or None if it is missing or another process holds it."""
    try:
        import fcntl
    except ImportError:  # not on Windows, where nothing is left over but by a crash
        return None
    try:
        handle = os.open(file, _OPEN)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove(folder: str, handle: int | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if handle is not None:
        os.close(handle)
