"""The findings on timing: which arm is faster, where that changes, the share of the roof.

The ratios are in the tables; how far they hold is in trust.py.

No arm is called faster or slower if its interval contains 1 or its comparison is noisy (see `RecordedComparison`).
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.text.labels import CaseFactor, CommonFactors, arm_in_words, case_in_words, join_words, series_name
from sdpa_onnx.report.text.number_text import count, figures_per_second, share
from sdpa_onnx.report.timing.alarms import alarm_lines
from sdpa_onnx.report.timing.case_names import CaseNames, case_names
from sdpa_onnx.report.timing.comparisons import JudgedRatio, RecordedComparison, central, comparisons, fastest
from sdpa_onnx.report.timing.slices import Slice, axis_value, slices_along
from sdpa_onnx.report.timing.verdict_text import ratio_in_words, verdict_counts

__all__ = ["timing_findings"]

_MOST_CASES = 3
_DECOMPOSED = "decomposed"


def timing_findings(records: Sequence[Record], usual: CommonFactors) -> list[str]:
    """The findings as sentences; empty without timings."""
    found = comparisons(records)
    if not found:
        return []
    names = case_names(found, usual)
    return [
        *alarm_lines(found, names),
        *_against_lines(found, names),
        *_winner_lines(found, CaseFactor.LENGTH, usual),
        *_winner_lines(found, CaseFactor.HEAD_DIM, usual),
        *_roof_lines(found, names),
    ]


def _main_target(found: Sequence[RecordedComparison]) -> list[RecordedComparison]:
    """The comparisons of the target that was timed most."""
    targets = Counter(one.first.target for one in found)
    main = targets.most_common(1)[0][0]
    return [one for one in found if one.first.target == main]


def _against_lines(found: Sequence[RecordedComparison], names: CaseNames) -> list[str]:
    """Each arm over its baseline, then each form over the decomposed graph on its runtime."""
    pairs: dict[tuple[str, str], list[tuple[RecordedComparison, JudgedRatio]]] = {}
    for one in found:
        for arm in one.contenders:
            pairs.setdefault((_name(one, arm), arm.baseline), []).append((one, one.judged(arm)))
    for one in found:
        decomposed = {_environment(arm): arm for arm in one.arms if arm.form == _DECOMPOSED}
        for arm in one.contenders:
            other = decomposed.get(_environment(arm))
            if other is not None and other in one.contenders and arm.form not in ("", _DECOMPOSED):
                pairs.setdefault((_name(one, arm), _name(one, other)), []).append((one, one.between(arm, other)))
    return [
        f"{_against_line(arms, judged, names)}{_not_timed_words(arms[0], found)}"
        for arms, judged in pairs.items()
        if len(found) > 1 or len(pairs) > 2
    ]


def _not_timed_words(name: str, found: Sequence[RecordedComparison]) -> str:
    """How often an arm has no time: such cases are not counted, neither as equal nor as faster or slower."""
    missing = [arm for one in found for arm in one.missing if name in (arm_in_words(arm), series_name(arm))]
    if not missing:
        return ""
    outcomes = join_words(sorted({arm.outcome.counted.value for arm in missing}))
    return f" It has no time in {count(len(missing), 'more case')} ({outcomes})."


def _environment(arm: TimingRecord) -> tuple[object, ...]:
    """What two arms must share so that their forms can be compared."""
    return (arm.runtime, arm.python, tuple(sorted(arm.options.items())), arm.threads)


def _name(one: RecordedComparison, arm: TimingRecord) -> str:
    """The long name of an arm; its short name if the long one fits another arm too (two files, two versions)."""
    words = arm_in_words(arm)
    return words if sum(arm_in_words(other) == words for other in one.arms) == 1 else series_name(arm)


def _against_line(
    arms: tuple[str, str], pairs: Sequence[tuple[RecordedComparison, JudgedRatio]], names: CaseNames
) -> str:
    counted = verdict_counts([judged for _, judged in pairs])
    line = f"{_capital(arms[0])} against {arms[1]}: {counted}."
    slower = [(one, judged) for one, judged in pairs if judged.proven is RatioVerdict.SLOWER]
    if slower:
        slower.sort(key=lambda pair: -pair[1].ratio.value)
        cases = [f"{names.of([one.first])} ({ratio_in_words(judged)})" for one, judged in slower[:_MOST_CASES]]
        more = f"; and {count(len(slower) - _MOST_CASES, 'more case')}" if len(slower) > _MOST_CASES else ""
        line = f"{line} Slower for {'; '.join(cases)}{more}."
    if all(judged.ratio.is_paired for _, judged in pairs):
        return line
    baselines = join_words(sorted({one.first.baseline for one, _ in pairs}))
    return f"{line} Each was paired with {baselines}, not with the other, so the intervals are wider."


def _winner_lines(found: Sequence[RecordedComparison], axis: CaseFactor, usual: CommonFactors) -> list[str]:
    arms = [arm for one in found if len(one.arms) > 1 for arm in one.arms]
    return [f"{_winner_line(one, usual)}{_without_time(one, found)}" for one in slices_along(arms, axis)]


def _without_time(along: Slice[TimingRecord], found: Sequence[RecordedComparison]) -> str:
    """The arms that have no time in a case of the line, and are not compared there."""
    cases = {(record.target, record.group, record.case) for record in along.records}
    comparisons_along = [one for one in found if (one.first.target, one.first.group, one.first.case) in cases]
    names = sorted({series_name(arm) for one in comparisons_along for arm in one.missing})
    return f" Not compared where it has no time: {join_words(names)}." if names else ""


def _winner_line(along: Slice[TimingRecord], usual: CommonFactors) -> str:
    winners = []
    for one in comparisons(along.records):
        winner = fastest(one)
        winners.append((axis_value(one.first, along.axis), series_name(winner) if winner else ""))
    winners.sort()
    runs = [(name, [value for value, _ in run]) for name, run in groupby(winners, key=lambda winner: winner[1])]
    fixed = case_in_words(along.records[0], usual, without=[along.axis])
    where = f"({along.target}, {fixed})"
    everywhere = f"at every {along.axis} from {winners[0][0]} to {winners[-1][0]} {where}"
    if len(runs) == 1:
        name = runs[0][0]
        return f"{name} is fastest {everywhere}." if name else f"No arm is clearly fastest {everywhere}."
    listed = "; ".join(f"{name or 'no clear winner'} {_values_in_words(values)}" for name, values in runs)
    changes = len({name for name, _ in runs if name}) > 1
    start = f"The fastest arm changes with {along.axis}" if changes else f"Fastest arm by {along.axis}"
    return f"{start} {where}: {listed}."


def _values_in_words(values: Sequence[int]) -> str:
    if len(values) < 3:
        return f"at {join_words([str(value) for value in values])}"
    return f"from {values[0]} to {values[-1]}"


def _roof_lines(found: Sequence[RecordedComparison], names: CaseNames) -> list[str]:
    middle = central(_main_target(found))
    arms = [arm for arm in middle.arms if arm.roof_share is not None and arm.useful_flops is not None]
    if not arms:
        return []
    shares = [
        f"{series_name(arm)} reaches {share(arm.roof_share)} "
        f"({figures_per_second(known(arm.useful_flops) / known(arm.median_seconds), 'FLOP/s')})"
        for arm in arms
    ]
    line = f"Share of the roof measured on this machine for {names.of([middle.first])}: {join_words(shares)}."
    over = any(known(arm.roof_share) > 1 for arm in arms)
    return [f"{line} A share above 100 % means that the measured roof is too low." if over else line]


def _capital(text: str) -> str:
    """Capitalise the start of a sentence; names of arms keep their case."""
    return text[:1].upper() + text[1:] if text.startswith(("the ", "form ")) else text
