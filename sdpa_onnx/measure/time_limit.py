"""A time limit on a job: a deadline with a reserve for its end, and a timer for what does not look at the clock."""

import contextlib
import math
import numbers
import signal
import threading
import time
from collections.abc import Iterator

from sdpa_onnx.errors import PlanError
from sdpa_onnx.measure.deadline import Deadline

__all__ = ["LEAST_SECONDS", "checked_seconds", "interrupted_at", "limited_to"]

# The shortest time limit of a job.
LEAST_SECONDS = 0.1

# Share of the limit that is kept for the end, and the most seconds of it: processes are stopped, records are written
# and printed.
_RESERVE, _MOST_RESERVE_SECONDS = 0.15, 6.0


def limited_to(budget: float | None, *, elapsed_seconds: float = 0.0) -> Deadline:
    """When the work of a job must end.

    Args:
        budget: Seconds for the job; None = no limit.
        elapsed_seconds: How long ago it began.

    Raises:
        PlanError: If it is no number of seconds.
    """
    if budget is None:
        return Deadline()
    budget = checked_seconds("budget", budget, least=LEAST_SECONDS)
    return Deadline(budget_seconds=budget - _reserve(budget), start=time.monotonic() - elapsed_seconds)


def checked_seconds(option: str, value: object, *, least: float) -> float:
    """A number of seconds that a user gave.

    Args:
        option: Its name.
        value: What was given, of any type.
        least: The smallest number.

    Raises:
        PlanError: If it is no number, too small, or longer than the timers of this system wait.

    Example:
        >>> checked_seconds("budget", 60, least=0.1)
        60.0
    """
    most = threading.TIMEOUT_MAX
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise PlanError(f"{option} is {value!r}, not a number of seconds.", hint=f"Give at least {least:g}.")
    seconds = float(value)
    if seconds < least:
        raise PlanError(f"{option} is {seconds:g} s.", hint=f"Give at least {least:g}.")
    if seconds > most:
        raise PlanError(f"{option} is {seconds:g} s, longer than a timer waits.", hint=f"Give at most {most:.2g}.")
    return seconds


@contextlib.contextmanager
def interrupted_at(deadline: Deadline) -> Iterator[None]:
    """Interrupt what runs when the time is over, as Ctrl-C does, for what does not look at the clock itself.

    An oracle of a large case, or a module of the user, computes in this process. Without timers, or in another thread
    than the main one, nothing is interrupted.

    Args:
        deadline: Of the job; the interruption comes in the middle of the reserve, after everything that looks at
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
