"""The gate on time: a regression only where the paired test proves a slow-down beyond the margin.

Asks one question of every arm: is HEAD slower by more than the margin? Yes fails, no passes, and an open question is
told with what it would take. Holm over all arms of a table: ten comparisons without a change are no ten chances.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from sdpa_onnx.core.compare.gate_effects import Effect, Machine, paired_effect, stored_effect
from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gate_match import RecordMatch, match_records
from sdpa_onnx.core.compare.gate_row import gate_record, percent
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.core.records.verdicts import Outcome
from sdpa_onnx.core.timing.holm import holm

__all__ = ["TimeQuestion", "paired_questions", "stored_questions", "time_gate"]

# A difference that is proven and below this is called equal. Source: METHOD B.4.
_LEAST_EFFECT = 0.01
# More launches than these are not asked of anybody: the ratio lies at the margin itself.
_MOST_LAUNCHES = 200
_WHERE_NOISY = (
    "NOISY: a second process of the baseline came out different from it, so no time of this comparison can be trusted. "
    "Nothing was gated; measure again on a quieter machine or for longer."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeQuestion:
    """The question about one arm.

    Args:
        of: Its record in HEAD.
        effect: The ratio to BASE, or why there is none.
        beside: Its record in BASE, where both were timed interleaved; None for stored runs.
    """

    of: TimingRecord
    effect: Effect | str
    beside: TimingRecord | None = None


def paired_questions(timed: Sequence[tuple[TimingRecord, TimingRecord]]) -> Iterator[TimeQuestion]:
    """One question a pair of BASE and HEAD that were timed interleaved, BASE being the baseline."""
    for before, now in timed:
        failed = before.outcome is Outcome.FAILED and now.outcome is Outcome.OK
        effect = f"BASE did not run: {before.reason}" if failed else paired_effect(now)
        yield TimeQuestion(of=now, effect=effect, beside=before)


def stored_questions(
    base: Sequence[Record], head: Sequence[Record], machines: tuple[Machine, Machine], pinned: str
) -> Iterator[TimeQuestion]:
    """One question an arm that both runs timed; the baseline itself is not asked about."""
    sides = [[one for one in side if isinstance(one, TimingRecord)] for side in (base, head)]
    for match in match_records(*sides):
        if not match.base or not match.head or match.head[0].arm == match.head[0].baseline:
            continue
        yield TimeQuestion(of=match.head[0], effect=_stored(match, sides, machines, pinned))


def _stored(
    match: RecordMatch[TimingRecord],
    sides: Sequence[Sequence[TimingRecord]],
    machines: tuple[Machine, Machine],
    pinned: str,
) -> Effect | str:
    if match.pair is None:
        return f"it stands {len(match.base)} times in BASE and {len(match.head)} times in HEAD."
    base, head = match.pair
    pins = tuple(_pin(record, side) for record, side in zip(match.pair, sides, strict=True))
    return stored_effect(base, head, (pins[0], pins[1]), machines, pinned)


def _pin(record: TimingRecord, side: Sequence[TimingRecord]) -> TimingRecord | None:
    """The arm of the same comparison that its ratio refers to."""
    same = (
        one for one in side if (one.target, one.group, one.threads) == (record.target, record.group, record.threads)
    )
    return next((one for one in same if one.arm == record.baseline and one.outcome is Outcome.OK), None)


def time_gate(questions: Sequence[TimeQuestion], limits: GateLimits) -> list[GateRecord]:
    """Answer every question; the errors of all of them together are held."""
    shifted = [_p_value(one.effect, limits) for one in questions if isinstance(one.effect, Effect)]
    adjusted = iter(holm(shifted))
    rows = []
    for one in questions:
        if isinstance(one.effect, str):
            rows.append(_without(one, one.effect))
        else:
            rows.append(_answered(one, one.effect, next(adjusted), len(shifted), limits))
    return rows


def _p_value(effect: Effect, limits: GateLimits) -> float:
    """Two-sided, of a ratio of 1 + margin, as if alpha were spent at once; 1 where HEAD is below it."""
    away = effect.estimate.log_ratio - math.log1p(limits.margin)
    if away <= 0 or effect.is_noisy:
        return 1.0
    return min(1.0, replace(effect.estimate, log_ratio=away).p_value() * limits.alpha / effect.alpha)


def _without(one: TimeQuestion, reason: str) -> GateRecord:
    """No ratio: two runs that are not alike, or a machine that is too busy."""
    if one.beside is None:
        return gate_record(Gate.TIME, GateVerdict.NOT_COMPARABLE, one.of, evidence=f"Not comparable: {reason}")
    return gate_record(Gate.TIME, GateVerdict.UNDECIDED, one.of, evidence=reason)


def _answered(one: TimeQuestion, effect: Effect, p_value: float, comparisons: int, limits: GateLimits) -> GateRecord:
    low, high = effect.estimate.interval(effect.alpha)
    bar = 1 + limits.margin
    proven = p_value <= limits.alpha
    if effect.is_noisy:
        word, told = GateVerdict.UNDECIDED, _WHERE_NOISY
    elif low > bar and proven:
        word, told = GateVerdict.REGRESSION, f"All of the interval lies above the {percent(limits.margin)} allowed."
    elif high > bar:
        word, told = (
            GateVerdict.UNDECIDED,
            _open(effect, limits, comparisons, is_alone=low > bar, is_stored=one.beside is None),
        )
    else:
        word, told = _inside(effect, low, high, limits)
    row = gate_record(Gate.TIME, word, one.of, evidence=f"{_ratio_words(effect.estimate.ratio, low, high)} {told}")
    return msgspec.structs.replace(
        row,
        base_seconds=one.beside.median_seconds if one.beside is not None else -1.0,
        head_seconds=one.of.median_seconds if one.beside is not None else -1.0,
        ratio=effect.estimate.ratio,
        ratio_low=low,
        ratio_high=high,
        confidence=1 - limits.alpha,
        margin=limits.margin,
        p_value=p_value,
        warnings=one.of.warnings,
    )


def _inside(effect: Effect, low: float, high: float, limits: GateLimits) -> tuple[GateVerdict, str]:
    """HEAD is not slower than allowed: faster, slower inside the margin, or the same as far as was asked."""
    is_large = abs(effect.estimate.log_ratio) > _LEAST_EFFECT
    if high < 1 and is_large:
        return GateVerdict.BETTER, "All of the interval lies below 1."
    if low > 1 and is_large:
        return GateVerdict.WORSE, f"Slower, inside the {percent(limits.margin)} allowed."
    return GateVerdict.SAME, f"A slow-down above the {percent(limits.margin)} allowed is ruled out."


def _open(effect: Effect, limits: GateLimits, comparisons: int, *, is_alone: bool, is_stored: bool) -> str:
    """Why the question is open, and what it would take."""
    slower = "Slower; whether" if effect.estimate.interval(effect.alpha)[0] > 1 else "Whether it is slower"
    by = f"by more than the {percent(limits.margin)} allowed is open"
    if is_alone:
        return f"Alone this would be a regression; among {comparisons} comparisons it is not proven."
    if is_stored:
        return f"{slower} {by}. Time both interleaved on one machine: compare the two models instead of two runs."
    more = _launches_needed(effect, limits)
    if more > _MOST_LAUNCHES:
        return f"{slower} {by}: the ratio is too close to the limit to be told from it."
    return f"{slower} {by}. About {more} launches more would tell (give more --seconds), or a quieter machine."


def _launches_needed(effect: Effect, limits: GateLimits) -> int:
    """Launches more until the half-width is below the distance to the limit, the scatter being as seen."""
    estimate = effect.estimate
    distance = abs(estimate.log_ratio - math.log1p(limits.margin))
    half = math.log(estimate.interval(effect.alpha)[1]) - estimate.log_ratio
    if distance * math.sqrt((_MOST_LAUNCHES + estimate.launches) / estimate.launches) <= half:
        return _MOST_LAUNCHES + 1
    return max(1, math.ceil(estimate.launches * (half / distance) ** 2) - estimate.launches)


def _ratio_words(ratio: float, low: float, high: float) -> str:
    return f"HEAD takes {ratio:.3f} times as long [{low:.3f}, {high:.3f}]."
