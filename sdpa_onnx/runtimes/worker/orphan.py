"""No worker outlives its parent, even one that is killed while a call runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

__all__ = ["OTHER_PARENT", "die_with"]

# The parent knows this line: what it started was a program that started us.
OTHER_PARENT = "sdpa-onnx: another process is the parent"

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Ask the system to kill this process when the thread that started it ends; end now if another is its parent.

    It is where the one that is meant is gone already, or started a program that started this process.

    Elsewhere than on Linux a worker ends at the end of its pipe only, which it sees between two calls.

    Args:
        parent: Process that started this one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        with contextlib.suppress(OSError):
            os.write(2, f"{OTHER_PARENT}\n".encode())
        os._exit(1)
