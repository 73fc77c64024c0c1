"""Resident memory of a process, as Linux reports it; -1 where it is not reported."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

__all__ = ["give_back", "peak_bytes", "reset_peak", "resident_bytes"]

_PROCESSES = Path("/proc")


def resident_bytes(process: int | str = "self") -> int:
    """Now."""
    return _field("VmRSS:", process)


def peak_bytes(process: int | str = "self") -> int:
    """The greatest since the start or the last `reset_peak`."""
    return _field("VmHWM:", process)


def reset_peak(process: int | str = "self") -> bool:
    """Let the peak begin anew; False where the system does not allow it. Source: proc(5), clear_refs, value 5."""
    try:
        (_PROCESSES / str(process) / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def give_back() -> None:
    """Give freed memory back to the system, so that the next arm does not find it resident; glibc only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _field(name: str, process: int | str) -> int:
    try:
        lines = (_PROCESSES / str(process) / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return -1
    for line in lines:
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return -1
