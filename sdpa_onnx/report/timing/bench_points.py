"""The comparisons of one `bench` along a length: which axis is the length, and where an arm overtakes the baseline.

Data only: layout and drawing are elsewhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.crossover import Crossover, LengthRatio, crossovers
from sdpa_onnx.report.timing.comparisons import RecordedComparison, comparisons

if TYPE_CHECKING:
    from sdpa_onnx.workflows.bench.bench_files import BenchResult

__all__ = ["ComparisonLine", "SizedComparison", "along_length", "arm_names", "overtakings", "sizes_words"]

# Axes that may be the length; if several change together, the first: everything grows with the keys.
_LENGTHS = ("kv_seq_len", "past_seq_len", "q_seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedComparison:
    """A comparison that has a time, with the sizes of its axes."""

    sizes: Mapping[str, int]
    comparison: RecordedComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonLine:
    """Comparisons along one axis, in order of its size.

    Args:
        axis: Name of the axis; "" if there is one comparison, or no axis with a different size in each.
        sized: The comparisons.
    """

    axis: str
    sized: tuple[SizedComparison, ...]

    def length(self, one: SizedComparison) -> int:
        return one.sizes.get(self.axis, 0)


def along_length(results: "Sequence[BenchResult]") -> ComparisonLine:
    """Sort the comparisons of a bench by the axis in which they differ."""
    found = [
        SizedComparison(sizes=one.sizes, comparison=comparison)
        for one in results
        for comparison in comparisons(one.records)[:1]
    ]
    axis = _axis([one.sizes for one in found])
    return ComparisonLine(
        axis=axis, sized=tuple(sorted(found, key=lambda one: one.sizes.get(axis, 0)) if axis else found)
    )


def _axis(sizes: Sequence[Mapping[str, int]]) -> str:
    names = dict.fromkeys([*_LENGTHS, *(name for one in sizes for name in one)])
    distinct = [name for name in names if len(sizes) > 1 and len({one.get(name, 0) for one in sizes}) == len(sizes)]
    return next(iter(distinct), "")


def sizes_words(sizes: Mapping[str, int]) -> str:
    """Sizes as they are given to --size: q_seq_len=128, kv_seq_len=128."""
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())


def arm_names(along: ComparisonLine) -> list[str]:
    """Every arm once, the baseline first."""
    return list(dict.fromkeys(arm.arm for one in along.sized for arm in one.comparison.arms))


def overtakings(along: ComparisonLine) -> dict[str, tuple[Crossover, ...]]:
    """Where each arm overtakes the baseline or is overtaken by it; by arm, for arms compared at two sizes or more.

    Noisy comparisons and comparisons with another baseline are not used.
    """
    if not along.axis:
        return {}
    baseline = along.sized[0].comparison.first.baseline
    points: dict[str, list[LengthRatio]] = {}
    for one in along.sized:
        for arm in one.comparison.contenders:
            if arm.baseline == baseline and (point := _point(arm, along.length(one), one.comparison)) is not None:
                points.setdefault(arm.arm, []).append(point)
    return {name: crossovers(found) for name, found in points.items() if len(found) > 1}


def _point(arm: TimingRecord, length: int, comparison: RecordedComparison) -> LengthRatio | None:
    if arm.ratio is None or arm.log_ratio_se is None or arm.degrees is None or length <= 0:
        return None
    if comparison.judged(arm).verdict is RatioVerdict.NOISY:
        return None
    return LengthRatio(
        length=length, log_ratio=math.log(arm.ratio), standard_error=arm.log_ratio_se, degrees=arm.degrees
    )
