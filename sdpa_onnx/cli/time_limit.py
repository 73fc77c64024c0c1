"""The time limit of a command, `--budget`: counted from its start, with a reserve to print what was found."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdpa_onnx.measure.deadline import Deadline

__all__ = ["command_deadline", "interrupted_at", "process_age"]

# Share of the limit that is kept for the end, and the most seconds of it: processes are stopped, records are written
# and printed.
_RESERVE, _MOST_RESERVE_SECONDS = 0.15, 6.0
# Field of /proc/PID/stat, counted after the name in parentheses: start of the process in ticks since boot.
# Source: proc_pid_stat(5), field 22.
_START_FIELD = 19


def command_deadline(budget: float | None) -> "Deadline":
    """When the work of a command must end.

    Args:
        budget: Seconds for the command; None = no limit.
    """
    from sdpa_onnx.measure.deadline import Deadline

    if budget is None:
        return Deadline()
    return Deadline(budget_seconds=budget - _reserve(budget), start=time.monotonic() - process_age())


def process_age(stat: Path = Path("/proc/self/stat")) -> float:
    """Seconds since this process began: starting Python and importing belong to a command.

    Where the system does not report it, the CPU time so far, which is less.

    Args:
        stat: The system's description of the process.
    """
    try:
        ticks = int(stat.read_text().rpartition(")")[2].split()[_START_FIELD])
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()


@contextlib.contextmanager
def interrupted_at(deadline: "Deadline") -> Iterator[None]:
    """Interrupt what runs when the time is over, as Ctrl-C does, for what does not look at the clock itself.

    An oracle of a large case, or a module of the user, computes in this process. Without timers, or in another thread
    than the main one, nothing is interrupted.

    Args:
        deadline: Of the command; the interruption comes in the middle of the reserve, after everything that looks at
            the clock has ended by itself.
    """
    budget = deadline.budget_seconds
    is_main = threading.current_thread() is threading.main_thread()
    if budget is None or not is_main or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:  # the timer may run out before the next statement
        signal.setitimer(signal.ITIMER_REAL, deadline.seconds_left + _reserve(budget) / 2)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _reserve(budget: float) -> float:
    return min(_RESERVE * budget, _MOST_RESERVE_SECONDS)
