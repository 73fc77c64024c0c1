"""Timing records as comparisons, and the verdict on a ratio; forms no sentences.

Ratios, intervals and verdicts come from the records. Computed here are only quotients of two arms, and the verdicts of
records of earlier versions, which have none.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sdpa_onnx.core.compare.gate_effects import welch
from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import Outcome, Record, TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.paired import RatioEstimate
from sdpa_onnx.report.text.labels import case_options
from sdpa_onnx.report.timing.doubt import TimingDoubt, timing_doubt

__all__ = ["EQUAL_WITHIN", "ArmRatio", "JudgedRatio", "RecordedComparison", "central", "comparisons", "fastest"]

# Smallest effect that is called faster or slower, and the half-width inside which two arms are equal.
# Source: METHOD B.4 (|est| > 1 %; equivalence margin delta = 2 %).
# Twin: core/timing/paired.py, for records with a verdict.
_SMALLEST_EFFECT = 0.01
EQUAL_WITHIN = 0.02

_DECIDED = (RatioVerdict.FASTER, RatioVerdict.SLOWER, RatioVerdict.EQUAL)
_SWAPPED = {RatioVerdict.FASTER: RatioVerdict.SLOWER, RatioVerdict.SLOWER: RatioVerdict.FASTER}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRatio:
    """Time of one arm over another, with its interval; below 1 = faster.

    Args:
        value, low, high: The ratio and the ends of its interval.
        standard_error, degrees: Of the log ratio, as in `TimingRecord`; None if not known.
        is_paired: Whether the two arms were paired visit by visit, not each with a third arm.
    """

    value: float
    low: float
    high: float
    standard_error: float | None = None
    degrees: float | None = None
    is_paired: bool = True

    def over(self, other: "ArmRatio") -> "ArmRatio":
        """Compare two arms that share a baseline; the pairing of the two is lost.

        If both standard errors are known, the interval is Welch's, at the smaller alpha of the two. It is too wide
        rather than too narrow: the noise of the baseline is in both ratios and counts twice. Otherwise the ends of the
        intervals are divided: both 95 % intervals cover at once in at least 90 % (Bonferroni).
        """
        if self.is_estimated and other.is_estimated:
            return self._welch_over(other)
        value = self.value / other.value
        if other.low <= 0:
            return ArmRatio(value=value, low=0.0, high=math.inf)
        return ArmRatio(value=value, low=self.low / other.high, high=self.high / other.low)

    @property
    def is_estimated(self) -> bool:
        """Whether the standard error of its logarithm is known."""
        return bool(self.standard_error and self.degrees)

    def _welch_over(self, other: "ArmRatio") -> "ArmRatio":
        estimate = welch(_estimate(other), _estimate(self))
        low, high = estimate.interval(min(_alpha_of(self), _alpha_of(other)))
        return ArmRatio(
            value=estimate.ratio,
            low=low,
            high=high,
            standard_error=estimate.standard_error,
            degrees=estimate.degrees,
            is_paired=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRatio:
    """A ratio with its verdict.

    Args:
        ratio: The ratio.
        verdict: As recorded, or as its interval allows.
        launches_needed: If inconclusive, about how many more launches would decide.
        doubt: The check of the measurement that contradicts a verdict that was reached; None if none does.
    """

    ratio: ArmRatio
    verdict: RatioVerdict
    launches_needed: int = 0
    doubt: TimingDoubt | None = None

    @property
    def proven(self) -> RatioVerdict | None:
        """The verdict if it was reached and nothing contradicts it."""
        return self.verdict if self.verdict in _DECIDED and self.doubt is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedComparison:
    """Arms that were timed interleaved for one case; the baseline first if present.

    Args:
        arms: Arms that have a time.
        missing: Requested arms that failed or were not measured.
    """

    arms: tuple[TimingRecord, ...]
    missing: tuple[TimingRecord, ...] = ()

    @property
    def first(self) -> TimingRecord:
        """Any arm, for what all of them share: target, case, sizes."""
        return self.arms[0]

    @property
    def contenders(self) -> tuple[TimingRecord, ...]:
        """The arms that are not the baseline."""
        return tuple(arm for arm in self.arms if arm.arm != arm.baseline)

    @property
    def is_noisy(self) -> bool:
        """Whether the time of a clone of the baseline differed: then no ratio of the comparison is valid."""
        return any(arm.verdict is RatioVerdict.NOISY for arm in self.arms)

    def judged(self, arm: TimingRecord) -> JudgedRatio:
        """The ratio of an arm over the baseline as recorded, with its verdict.

        A record with the verdict faster or slower and an interval that contains 1 contradicts itself; the interval
        counts.
        """
        ratio = _ratio_of(arm)
        verdict = _judge(ratio) if arm.verdict is None else arm.verdict
        is_contradicted = (verdict is RatioVerdict.FASTER and ratio.high >= 1) or (
            verdict is RatioVerdict.SLOWER and ratio.low <= 1
        )
        if self.is_noisy:
            verdict = RatioVerdict.NOISY
        elif is_contradicted:
            verdict = RatioVerdict.INCONCLUSIVE
        doubt = timing_doubt(arm) if verdict in _DECIDED else None
        return JudgedRatio(ratio=ratio, verdict=verdict, launches_needed=arm.launches_needed or 0, doubt=doubt)

    def between(self, arm: TimingRecord, other: TimingRecord) -> JudgedRatio:
        """The ratio of an arm over any other arm of the comparison, with its verdict."""
        ratio = _ratio_of(arm).over(_ratio_of(other))
        if other.arm == other.baseline:
            return self.judged(arm)
        if arm.arm == arm.baseline:
            against = self.judged(other)
            verdict = _SWAPPED.get(against.verdict, against.verdict)
            return replace(against, ratio=ratio, verdict=verdict)
        verdict = RatioVerdict.NOISY if self.is_noisy else _judge(ratio)
        doubt = timing_doubt(arm, other) if verdict in _DECIDED else None
        return JudgedRatio(ratio=ratio, verdict=verdict, doubt=doubt)


def _judge(ratio: ArmRatio) -> RatioVerdict:
    """The verdict that an interval allows by itself: never faster or slower if it contains 1."""
    effect = abs(ratio.value - 1) > _SMALLEST_EFFECT
    if ratio.high < 1 and effect:
        return RatioVerdict.FASTER
    if ratio.low > 1 and effect:
        return RatioVerdict.SLOWER
    if ratio.low >= 1 - EQUAL_WITHIN and ratio.high <= 1 + EQUAL_WITHIN:
        return RatioVerdict.EQUAL
    return RatioVerdict.INCONCLUSIVE


def _alpha_of(ratio: ArmRatio) -> float:
    """The probability outside an interval: less than 1 - confidence if the test had several looks."""
    return replace(_estimate(ratio), log_ratio=math.log(ratio.high / ratio.value)).p_value()


def _estimate(ratio: ArmRatio) -> RatioEstimate:
    return RatioEstimate(
        log_ratio=math.log(ratio.value),
        standard_error=known(ratio.standard_error),
        degrees=known(ratio.degrees),
        launches=1,
    )


def _ratio_of(arm: TimingRecord) -> ArmRatio:
    """The ratio of an arm over its baseline as recorded."""
    return ArmRatio(
        value=known(arm.ratio),
        low=known(arm.ratio_low),
        high=known(arm.ratio_high),
        standard_error=arm.log_ratio_se,
        degrees=arm.degrees,
    )


def comparisons(records: Sequence[Record]) -> tuple[RecordedComparison, ...]:
    """Group the timings, by target in order of appearance, then by size; a group without a time is left out."""
    gathered: dict[tuple[str, ...], list[TimingRecord]] = {}
    targets: dict[str, int] = {}
    for record in records:
        if isinstance(record, TimingRecord):
            targets.setdefault(record.target, len(targets))
            gathered.setdefault((record.target, record.group, record.case), []).append(record)
    found = [_comparison(arms) for group in gathered.values() for arms in _by_threads(group)]
    ran = [one for one in found if one.arms]
    return tuple(sorted(ran, key=lambda one: (targets[one.first.target], *_order(one.first))))


def _by_threads(group: Sequence[TimingRecord]) -> list[list[TimingRecord]]:
    """One comparison, even if its arms differ in threads; one per number of threads if an arm occurs twice."""
    if len({record.arm for record in group}) == len(group):
        return [list(group)]
    threads = dict.fromkeys(record.threads for record in group)
    return [[record for record in group if record.threads == number] for number in threads]


def _comparison(group: Sequence[TimingRecord]) -> RecordedComparison:
    timed = [record for record in group if record.outcome is Outcome.OK and record.median_seconds is not None]
    return RecordedComparison(
        arms=tuple(sorted(timed, key=lambda arm: arm.arm != arm.baseline)),
        missing=tuple(record for record in group if record.outcome is not Outcome.OK),
    )


def central(found: Sequence[RecordedComparison]) -> RecordedComparison:
    """The comparison from which most others differ in one factor only.

    Of several, the one with more useful work. Counted by what remains if a factor is left out: of 10,000 comparisons,
    pairs would take minutes.
    """
    factors = [_factors(one.first) for one in found]
    equal = Counter(factors)
    close = Counter(key for one in factors for key in _without_each(one))

    def neighbours(place: int) -> tuple[int, int]:
        one = factors[place]
        # Those that are equal in all factors are in every count.
        differing = sum(close[key] - equal[one] for key in _without_each(one))
        return differing + equal[one], found[place].first.useful_flops or 0

    return found[max(range(len(found)), key=neighbours)]


def fastest(comparison: RecordedComparison) -> TimingRecord | None:
    """The arm that is faster than every other arm, or None if that is not certain, or doubtful."""
    for arm in comparison.arms:
        others = [other for other in comparison.arms if other is not arm]
        if others and all(comparison.between(arm, other).proven is RatioVerdict.FASTER for other in others):
            return arm
    return None


def _factors(record: TimingRecord) -> tuple[object, ...]:
    sizes = record.sizes
    lengths = (sizes.q_seq_len, sizes.kv_seq_len)
    return (sizes.batch_size, lengths, sizes.head_dim, case_options(record), record.dtype, record.threads)


def _without_each(factors: tuple[object, ...]) -> list[tuple[object, ...]]:
    """The factors with one of them left out, once for each."""
    return [(place, *factors[:place], *factors[place + 1 :]) for place in range(len(factors))]


def _order(record: TimingRecord) -> tuple[object, ...]:
    sizes = record.sizes
    options = case_options(record)
    figures = (sizes.batch_size, sizes.head_dim, sizes.q_seq_len, sizes.kv_seq_len)
    return (record.dtype, options, record.threads, *(figure or 0 for figure in figures))
