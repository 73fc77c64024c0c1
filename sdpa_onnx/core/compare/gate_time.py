"""The time gate: fails only if the paired test proves a slow-down above the margin.

Tests for every arm whether HEAD is slower than BASE by more than the margin. If the result is open, it reports how
many more launches would decide it. P-values are corrected over all arms of a table (Holm), so that many comparisons do
not raise the false alarm rate. Measures nothing.
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

__all__ = ["TimeComparison", "paired_comparisons", "stored_comparisons", "time_gate"]

# A proven difference below this counts as equal. Source: METHOD B.4.
_LEAST_EFFECT = 0.01
# More launches than this are not suggested, because the ratio is then too close to the margin.
_MOST_LAUNCHES = 200
_NOISY_EVIDENCE = (
    "NOISY: a second process of the baseline differs from the baseline, so no time of this comparison is reliable. "
    "The time gate was not applied; measure again on a quieter machine or for longer."
)

_Pins = dict[tuple[object, ...], TimingRecord]
"""The arm that a ratio refers to, by its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeComparison:
    """Whether one arm is slower in HEAD: the data of the test.

    Args:
        of: The arm's record in HEAD.
        effect: The ratio to BASE, or why there is none.
        beside: The arm's record in BASE if both were timed interleaved; None for stored runs.
    """

    of: TimingRecord
    effect: Effect | str
    beside: TimingRecord | None = None


def paired_comparisons(timed: Sequence[tuple[TimingRecord, TimingRecord]]) -> Iterator[TimeComparison]:
    """Yield one question per pair of BASE and HEAD timed interleaved with BASE as the baseline."""
    for before, now in timed:
        ran = before.outcome is Outcome.OK or now.outcome is not Outcome.OK
        effect = paired_effect(now) if ran else f"BASE was not timed: {before.reason}"
        yield TimeComparison(of=now, effect=effect, beside=before)


def stored_comparisons(
    base: Sequence[Record], head: Sequence[Record], machines: tuple[Machine, Machine], pinned: str
) -> Iterator[TimeComparison]:
    """Yield one question per arm that both runs timed, except the baseline."""
    sides = [[record for record in side if isinstance(record, TimingRecord)] for side in (base, head)]
    pins = (_pins(sides[0]), _pins(sides[1]))
    for match in match_records(*sides):
        if not match.base or not match.head or match.head[0].arm == match.head[0].baseline:
            continue
        yield TimeComparison(of=match.head[0], effect=_stored(match, pins, machines, pinned))


def _stored(
    match: RecordMatch[TimingRecord],
    pins: tuple[_Pins, _Pins],
    machines: tuple[Machine, Machine],
    pinned: str,
) -> Effect | str:
    if match.pair is None:
        return f"it occurs {len(match.base)} times in BASE and {len(match.head)} times in HEAD."
    base, head = match.pair
    mine = (pins[0].get(_place(base, base.baseline)), pins[1].get(_place(head, head.baseline)))
    return stored_effect(base, head, mine, machines, pinned)


def _pins(side: Sequence[TimingRecord]) -> _Pins:
    """The arms that have a time; of several in one place the first counts."""
    timed = [one for one in side if one.outcome is Outcome.OK]
    return {_place(one, one.arm): one for one in reversed(timed)}


def _place(record: TimingRecord, arm: str) -> tuple[object, ...]:
    """An arm of the comparison of a record."""
    return record.target, record.group, record.threads, arm


def time_gate(questions: Sequence[TimeComparison], limits: GateLimits) -> list[GateRecord]:
    """Create a gate record for every question; the false alarm rate holds for all of them together."""
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
    """Two-sided p-value of the ratio 1 + margin, scaled as if alpha were spent at once; 1 if HEAD is below it."""
    away = effect.estimate.log_ratio - math.log1p(limits.margin)
    if away <= 0 or effect.is_noisy:
        return 1.0
    return min(1.0, replace(effect.estimate, log_ratio=away).p_value() * limits.alpha / effect.alpha)


def _without(one: TimeComparison, reason: str) -> GateRecord:
    """Create the gate record for a comparison without a ratio: what was not measured decides nothing."""
    return gate_record(Gate.TIME, GateVerdict.NOT_COMPARABLE, one.of, evidence=f"Not comparable: {reason}")


def _answered(one: TimeComparison, effect: Effect, p_value: float, comparisons: int, limits: GateLimits) -> GateRecord:
    low, high = effect.estimate.interval(effect.alpha)
    bar = 1 + limits.margin
    proven = p_value <= limits.alpha
    if effect.is_noisy:
        verdict, text = GateVerdict.UNDECIDED, _NOISY_EVIDENCE
    elif low > bar and proven:
        verdict, text = GateVerdict.REGRESSION, f"The whole interval is above the allowed {percent(limits.margin)}."
    elif high > bar:
        verdict, text = (
            GateVerdict.UNDECIDED,
            _open(effect, limits, comparisons, is_alone=low > bar, is_stored=one.beside is None),
        )
    else:
        verdict, text = _inside(effect, low, high, limits)
    row = gate_record(Gate.TIME, verdict, one.of, evidence=f"{_ratio_text(effect.estimate.ratio, low, high)} {text}")
    return msgspec.structs.replace(
        row,
        base_seconds=one.beside.median_seconds if one.beside is not None else None,
        head_seconds=one.of.median_seconds if one.beside is not None else None,
        ratio=effect.estimate.ratio,
        ratio_low=low,
        ratio_high=high,
        confidence=1 - limits.alpha,
        margin=limits.margin,
        p_value=p_value,
        warnings=one.of.warnings,
    )


def _inside(effect: Effect, low: float, high: float, limits: GateLimits) -> tuple[GateVerdict, str]:
    """Decide the verdict if HEAD is not slower than allowed: better, worse within the margin, or the same."""
    is_large = abs(effect.estimate.log_ratio) > _LEAST_EFFECT
    if high < 1 and is_large:
        return GateVerdict.BETTER, "The whole interval is below 1."
    if low > 1 and is_large:
        return GateVerdict.WORSE, f"Slower, but within the allowed {percent(limits.margin)}."
    return GateVerdict.SAME, f"A slow-down above the allowed {percent(limits.margin)} is ruled out."


def _open(effect: Effect, limits: GateLimits, comparisons: int, *, is_alone: bool, is_stored: bool) -> str:
    """Explain why the result is open, and what would decide it."""
    slower = "Slower; whether" if effect.estimate.interval(effect.alpha)[0] > 1 else "Whether it is slower"
    by = f"by more than the allowed {percent(limits.margin)} is open"
    if is_alone:
        return f"Not proven among {comparisons} comparisons; alone this would be a regression."
    if is_stored:
        return f"{slower} {by}. Time both interleaved on one machine: compare the two models instead of two runs."
    more = _launches_needed(effect, limits)
    if more > _MOST_LAUNCHES:
        return f"{slower} {by}: the ratio is too close to the limit."
    return f"{slower} {by}. About {more} more launches (larger --seconds), or a quieter machine, would decide it."


def _launches_needed(effect: Effect, limits: GateLimits) -> int:
    """Estimate how many more launches make the half-width smaller than the distance to the limit."""
    estimate = effect.estimate
    distance = abs(estimate.log_ratio - math.log1p(limits.margin))
    half = math.log(estimate.interval(effect.alpha)[1]) - estimate.log_ratio
    if distance * math.sqrt((_MOST_LAUNCHES + estimate.launches) / estimate.launches) <= half:
        return _MOST_LAUNCHES + 1
    return max(1, math.ceil(estimate.launches * (half / distance) ** 2) - estimate.launches)


def _ratio_text(ratio: float, low: float, high: float) -> str:
    return f"HEAD takes {ratio:.3f} times as long [{low:.3f}, {high:.3f}]."
