"""What native code prints, for runtimes that print why they fail."""

from __future__ import annotations

import ctypes
import os
import tempfile

__all__ = ["Prints"]


class Prints:
    """Catches what native code prints, on both streams of the process, between enter and exit."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._library = ctypes.CDLL(None)
        self._kept: list[int] = []

    def __enter__(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._kept = [os.dup(1), os.dup(2)]
        for stream in (1, 2):
            os.dup2(self._file.fileno(), stream)

    def __exit__(self, *_: object) -> None:
        self._library.fflush(None)  # else it reaches the real stream later
        for stream, kept in zip((1, 2), self._kept):
            os.dup2(kept, stream)
            os.close(kept)

    def text(self) -> str:
        """What was caught since the last enter."""
        self._file.seek(0)
        return self._file.read().decode(errors="replace")

    def close(self) -> None:
        """Free the file that they are caught in."""
        self._file.close()
