"""Timing records as comparisons, and the word for a ratio; writes no sentences.

The ratios and their intervals come from the records; only quotients of two arms
are formed here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sdpa_onnx.core.records import Outcome, Record, TimingRecord
from sdpa_onnx.report.words import case_options

__all__ = ["Comparison", "Ratio", "RatioVerdict", "central", "comparisons", "fastest", "judge", "ratio_of"]

# Smallest effect that is called faster or slower, and the half-width inside which two arms are the same.
# Source: METHOD B.4 (|est| > 1 %; equivalence margin delta = 2 %).
SMALLEST_EFFECT = 0.01
SAME_WITHIN = 0.02


class RatioVerdict(StrEnum):
    """What an interval of a ratio allows to say. Source: METHOD B.4."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "the same within 2 %"
    UNDECIDED = "too noisy to call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Time of one arm over another, with its interval; below 1 = faster."""

    value: float
    low: float
    high: float

    def over(self, other: "Ratio") -> "Ratio":
        """Compare two arms that share a baseline.

        The interval divides end by end, so it is wider than a paired one: both
        95 % intervals cover at once in at least 90 % (Bonferroni).
        """
        if other.low <= 0:
            return Ratio(value=self.value / other.value, low=0.0, high=math.inf)
        return Ratio(value=self.value / other.value, low=self.low / other.high, high=self.high / other.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Arms that were timed interleaved at one case; the baseline first if it is there."""

    arms: tuple[TimingRecord, ...]

    @property
    def first(self) -> TimingRecord:
        """Any arm, for what all of them share: target, case, sizes."""
        return self.arms[0]

    @property
    def contenders(self) -> tuple[TimingRecord, ...]:
        """The arms that are not the baseline."""
        return tuple(arm for arm in self.arms if arm.arm != arm.baseline)


def judge(ratio: Ratio) -> RatioVerdict:
    """Say what the interval allows: never faster or slower while it contains 1."""
    effect = abs(ratio.value - 1) > SMALLEST_EFFECT
    if ratio.high < 1 and effect:
        return RatioVerdict.FASTER
    if ratio.low > 1 and effect:
        return RatioVerdict.SLOWER
    if ratio.low >= 1 - SAME_WITHIN and ratio.high <= 1 + SAME_WITHIN:
        return RatioVerdict.SAME
    return RatioVerdict.UNDECIDED


def ratio_of(arm: TimingRecord) -> Ratio:
    """The ratio of an arm over its baseline as recorded."""
    return Ratio(value=arm.ratio, low=arm.ratio_low, high=arm.ratio_high)


def comparisons(records: Sequence[Record]) -> tuple[Comparison, ...]:
    """Gather the timings that succeeded, by target in order of appearance, then by size."""
    gathered: dict[tuple[str, str, str, int], list[TimingRecord]] = {}
    targets: dict[str, int] = {}
    for record in records:
        if isinstance(record, TimingRecord) and record.outcome is Outcome.OK and record.median_seconds > 0:
            targets.setdefault(record.target, len(targets))
            gathered.setdefault((record.target, record.group, record.case, record.threads), []).append(record)
    found = [
        Comparison(arms=tuple(sorted(arms, key=lambda arm: arm.arm != arm.baseline))) for arms in gathered.values()
    ]
    return tuple(sorted(found, key=lambda one: (targets[one.first.target], *_order(one.first))))


def central(found: Sequence[Comparison]) -> Comparison:
    """The comparison around which the others vary one factor at a time.

    Ties go to the one with more useful work.
    """

    def neighbours(one: Comparison) -> tuple[int, int]:
        close = sum(_differing_factors(one.first, other.first) <= 1 for other in found)
        return close, one.first.useful_flops

    return max(found, key=neighbours)


def fastest(comparison: Comparison) -> TimingRecord | None:
    """The arm that is faster than every other arm, or None if the intervals do not tell."""
    for arm in comparison.arms:
        others = [other for other in comparison.arms if other is not arm]
        if others and all(judge(ratio_of(arm).over(ratio_of(other))) is RatioVerdict.FASTER for other in others):
            return arm
    return None


def _factors(record: TimingRecord) -> tuple[object, ...]:
    sizes = record.sizes
    lengths = (sizes.q_seq_len, sizes.kv_seq_len)
    return (sizes.batch_size, lengths, sizes.head_dim, case_options(record.case), record.dtype, record.threads)


def _differing_factors(one: TimingRecord, other: TimingRecord) -> int:
    return sum(a != b for a, b in zip(_factors(one), _factors(other), strict=True))


def _order(record: TimingRecord) -> tuple[object, ...]:
    sizes = record.sizes
    options = case_options(record.case)
    return (record.dtype, options, record.threads, sizes.batch_size, sizes.head_dim, sizes.q_seq_len, sizes.kv_seq_len)
