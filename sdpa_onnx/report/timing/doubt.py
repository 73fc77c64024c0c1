"""Checks of a measurement that contradict a verdict on a time: the reason, and what to do. Changes no verdict."""

import math
from collections.abc import Sequence
from enum import StrEnum

from sdpa_onnx.core.records.records import TimingRecord

__all__ = ["CLOCKS", "OTHER_TIMING", "REMEDY", "TimingDoubt", "has_warning", "timing_doubt", "why_clocks_differ"]

# The first words of the warnings. Twins: workflows/timing/records.py, measure/timing_notice.py.
CLOCKS = "The ratio is "
OTHER_TIMING = "Another timing of sdpa_onnx"
_STILL_CHANGING = "was still changing during the measurement."

REMEDY = "repeat when the machine is quiet"


class TimingDoubt(StrEnum):
    """Why a verdict is doubtful, as a clause; a cause comes before its consequences."""

    OTHER_TIMING = "another sdpa-onnx timing ran at the same time"
    CLOCKS = "wall time and CPU time name different winners"
    STILL_CHANGING = "the ratio was still changing"


def timing_doubt(arm: TimingRecord, other: TimingRecord | None = None) -> TimingDoubt | None:
    """The first check that contradicts the verdict on an arm; None if none does.

    Clocks that differ contradict it only if the ratios are on different sides of 1.

    Args:
        arm: The arm.
        other: The arm to which it is compared, if that is not the baseline.
    """
    arms = [arm] if other is None else [arm, other]
    if any(has_warning(one, OTHER_TIMING) for one in arms):
        return TimingDoubt.OTHER_TIMING
    if any(has_warning(one, CLOCKS) for one in arms) and _is_split(arms):
        return TimingDoubt.CLOCKS
    is_moving = any(warning.endswith(_STILL_CHANGING) for one in arms for warning in one.warnings)
    return TimingDoubt.STILL_CHANGING if is_moving else None


def _is_split(arms: Sequence[TimingRecord]) -> bool:
    """Whether the two clocks name different winners, of one arm and the baseline or of two arms."""
    wall = [one.ratio_wall for one in arms if one.ratio_wall]
    cpu = [one.ratio_cpu for one in arms if one.ratio_cpu]
    if not len(wall) == len(cpu) == len(arms):
        return False
    low, high = sorted(math.prod([ratios[0], *(1 / one for one in ratios[1:])]) for ratios in (wall, cpu))
    return low < 1 < high


def why_clocks_differ(arms: Sequence[TimingRecord]) -> str:
    """The reason as a clause: CPU time is compared where other processes disturbed the calls."""
    if all(arm.clock == "cpu" for arm in arms):
        return f"other programs used the machine; {REMEDY}"
    return "one arm waits or sleeps"


def has_warning(arm: TimingRecord, beginning: str) -> bool:
    """Whether a warning of an arm starts like this."""
    return any(warning.startswith(beginning) for warning in arm.warnings)
