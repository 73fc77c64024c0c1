"""How a child process ended, for people. Starts and ends nothing."""

import os
import signal
from typing import IO

__all__ = ["ending", "last_line"]

_TAIL_BYTES = 4096


def ending(status: int) -> str:
    """How a process ended: the name of the signal, or its exit code."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def last_line(errors: IO[bytes]) -> str:
    """What a process printed last on its standard error, without a final stop, or ""."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _TAIL_BYTES))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return " ".join(lines[-1].split()).rstrip(".") if lines else ""
