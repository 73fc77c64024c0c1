"""No worker outlives its parent, even one that is killed while a call runs."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["die_with"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Ask the system to kill this process when the thread that started it ends; end now if its process is gone already.

    Elsewhere than on Linux a worker ends at the end of its pipe only, which it sees between two calls.

    Args:
        parent: Process that started this one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
