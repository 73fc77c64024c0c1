"""Whether an arm is warm: its visits no longer become faster, as far as so few of them can tell.

Judges the medians of visits; runs nothing and reads no clock. What changes over more visits than a warm-up has is seen
afterwards, in what was measured: `core.timing.paired.moved`.
"""

from collections.abc import Sequence
from enum import StrEnum
from statistics import median

__all__ = ["WarmUp", "judge_warm_up"]

# The rule of METHOD B.4 (three visits within 2 % of the best) took a slow decay for a steady state, and noise of 3 %
# a visit for none. Visits, tolerance and "twice" by simulation: docs/decisions/0006.
_VISITS, _TOLERANCE = 12, 0.01
# Where the time is up before so many visits: at least this. Source: METHOD B.4.
_FEW_VISITS, _FEW_TOLERANCE, _FEW_CALLS = 3, 0.02, 5


class WarmUp(StrEnum):
    """What is known of an arm's warm-up. NEVER: not steady within its time, which is told with the result."""

    NOT_YET = "not yet"
    STEADY = "steady"
    NEVER = "never"


def judge_warm_up(medians: Sequence[float], *, calls: int, seconds: float, limit_seconds: float) -> WarmUp:
    """Judge a warm-up after each visit: go on, steady, or given up.

    Steady: after at least 12 visits, the last third of them and the third before have medians within 1 %, and so it was
    one visit earlier. Thirds grow with the visits, so a slower decay gets a longer look.

    Args:
        medians: Median of every visit so far, CPU time, in order; any unit.
        calls: Calls so far, over all visits.
        seconds, limit_seconds: Wall time so far, and at most.

    Source: docs/decisions/0006, in place of METHOD B.4's rule; its limit of 2 s stays.
    """
    if seconds > limit_seconds:
        enough = len(medians) >= _FEW_VISITS and calls >= _FEW_CALLS
        return WarmUp.STEADY if enough and _agree(medians, _FEW_TOLERANCE) else WarmUp.NEVER
    if len(medians) >= _VISITS and _agree(medians, _TOLERANCE) and _agree(medians[:-1], _TOLERANCE):
        return WarmUp.STEADY
    return WarmUp.NOT_YET


def _agree(medians: Sequence[float], tolerance: float) -> bool:
    third = len(medians) // 3
    before, last = median(medians[-2 * third : -third]), median(medians[-third:])
    return abs(before - last) <= tolerance * min(before, last)
