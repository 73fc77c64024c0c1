"""Resident memory of this process, as Linux reports it; -1 where it is not reported."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

__all__ = ["give_back", "peak_bytes", "reset_peak", "resident_bytes"]

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Now."""
    return _field("VmRSS:")


def peak_bytes() -> int:
    """The greatest since the start or the last `reset_peak`."""
    return _field("VmHWM:")


def reset_peak() -> bool:
    """Let the peak begin anew; False where the system does not allow it. Source: proc(5), clear_refs, value 5."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def give_back() -> None:
    """Give freed memory back to the system, so that the next arm does not find it resident; glibc only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _field(name: str) -> int:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return -1
    for line in lines:
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return -1
