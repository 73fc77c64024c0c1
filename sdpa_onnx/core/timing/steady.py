"""Decides whether the warm-up of an arm is complete: its visits no longer become faster.

Compares the medians of visits; runs nothing and reads no clock. Changes that are slower than a warm-up are detected
afterwards, in the measured data: `core.timing.paired.moved`.
"""

from collections.abc import Sequence
from enum import StrEnum
from statistics import median

__all__ = ["WarmUp", "judge_warm_up"]

# The rule of METHOD B.4 (three visits within 2 % of the best) accepted a slow decay as a steady state and rejected
# noise of 3 % per visit. Visits, tolerance and the repeated check follow from simulation: docs/decisions/0006.
_VISITS, _TOLERANCE = 12, 0.01
# The weaker rule if the time limit is reached before that many visits. Source: METHOD B.4.
_FEW_VISITS, _FEW_TOLERANCE, _FEW_CALLS = 3, 0.02, 5


class WarmUp(StrEnum):
    """State of an arm's warm-up. NEVER: not steady within the time limit, which is reported with the result."""

    NOT_YET = "not yet"
    STEADY = "steady"
    NEVER = "never"


def judge_warm_up(medians: Sequence[float], *, calls: int, seconds: float, limit_seconds: float) -> WarmUp:
    """Decide after each visit whether a warm-up continues, is steady, or is given up.

    Steady: after at least 12 visits, the medians of the last third and of the third before it differ by at most 1 %,
    and did so one visit earlier. Thirds grow with the visits, so a slower decay is tested over a longer period.

    Args:
        medians: Median of every visit so far, CPU time, in order; any unit.
        calls: Calls so far, over all visits.
        seconds, limit_seconds: Wall time so far, and its limit.

    Source: docs/decisions/0006, which replaces METHOD B.4's rule except for its limit of 2 s.
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
