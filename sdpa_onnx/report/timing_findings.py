"""The timing sentences: who is faster, where it changes, how near the roof, how noisy.

Never says faster or slower while an interval contains 1 (comparisons.judge).
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from sdpa_onnx.core.records import Record, TimingRecord
from sdpa_onnx.report.comparisons import (
    Comparison,
    Ratio,
    RatioVerdict,
    central,
    comparisons,
    fastest,
    judge,
    ratio_of,
)
from sdpa_onnx.report.figures import count, figures_per_second, ratio_text, share
from sdpa_onnx.report.slices import Slice, axis_value, slices_along
from sdpa_onnx.report.words import Axis, Usual, arm_in_words, case_in_words, join_words, series_name

__all__ = ["timing_findings"]

# Share of disturbed calls above which the CPU clock decides. Source: METHOD B.4.
NOISY_SHARE = 0.10

_MOST_CASES = 3
_DECOMPOSED = "decomposed"


def timing_findings(records: Sequence[Record], usual: Usual) -> list[str]:
    """Tell what the timings say; nothing if there are none."""
    found = comparisons(records)
    if not found:
        return []
    return [
        *_central_lines(found, usual),
        *_other_target_lines(found),
        *_against_lines(found, usual),
        *_winner_lines(found, Axis.LENGTH, usual),
        *_winner_lines(found, Axis.HEAD_DIM, usual),
        *_roof_lines(found, usual),
        *_noise_lines(found),
    ]


def _main_target(found: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of the target that was timed most."""
    targets = Counter(one.first.target for one in found)
    main = targets.most_common(1)[0][0]
    return [one for one in found if one.first.target == main]


def _central_lines(found: Sequence[Comparison], usual: Usual) -> list[str]:
    middle = central(_main_target(found))
    where = f"{middle.first.target}, {case_in_words(middle.first, usual)}"
    return [
        f"{_capital(arm_in_words(arm))} takes {_ratio_words(ratio_of(arm))} the time of {arm.baseline} "
        f"in {where}: {judge(ratio_of(arm))}."
        for arm in middle.contenders
    ]


def _other_target_lines(found: Sequence[Comparison]) -> list[str]:
    """The same arms in the other targets, one line an arm."""
    main = _main_target(found)[0].first.target
    told: dict[str, list[str]] = {}
    for target in dict.fromkeys(one.first.target for one in found):
        if target != main:
            middle = central([one for one in found if one.first.target == target])
            for arm in middle.contenders:
                ratio = f"{target} {_ratio_words(ratio_of(arm))}, {judge(ratio_of(arm))}"
                told.setdefault(f"{_capital(arm_in_words(arm))} over {arm.baseline}", []).append(ratio)
    return [f"{arm} elsewhere: {'; '.join(ratios)}." for arm, ratios in told.items()]


def _against_lines(found: Sequence[Comparison], usual: Usual) -> list[str]:
    """Each arm over its baseline, then each form over the decomposed graph on its runtime."""
    pairs: dict[tuple[str, str], list[tuple[Comparison, Ratio]]] = {}
    for one in found:
        for arm in one.contenders:
            pairs.setdefault((arm_in_words(arm), arm.baseline), []).append((one, ratio_of(arm)))
    for one in found:
        decomposed = {arm.runtime: arm for arm in one.arms if arm.form == _DECOMPOSED}
        for arm in one.arms:
            other = decomposed.get(arm.runtime)
            if other is not None and arm.form not in ("", _DECOMPOSED):
                names = (arm_in_words(arm), arm_in_words(other))
                pairs.setdefault(names, []).append((one, ratio_of(arm).over(ratio_of(other))))
    return [_against_line(names, ratios, usual) for names, ratios in pairs.items() if len(found) > 1 or len(pairs) > 2]


def _against_line(names: tuple[str, str], pairs: Sequence[tuple[Comparison, Ratio]], usual: Usual) -> str:
    counted = _verdict_counts([ratio for _, ratio in pairs])
    line = f"{_capital(names[0])} against {names[1]}: {counted}."
    slower = [(one, ratio) for one, ratio in pairs if judge(ratio) is RatioVerdict.SLOWER]
    if not slower:
        return line
    slower.sort(key=lambda pair: -pair[1].value)
    cases = [
        f"{one.first.target}, {case_in_words(one.first, usual)} ({_ratio_words(ratio)})"
        for one, ratio in slower[:_MOST_CASES]
    ]
    more = f"; and {count(len(slower) - _MOST_CASES, 'more case')}" if len(slower) > _MOST_CASES else ""
    return f"{line} Slower at {'; '.join(cases)}{more}."


def _winner_lines(found: Sequence[Comparison], axis: Axis, usual: Usual) -> list[str]:
    arms = [arm for one in found if len(one.arms) > 1 for arm in one.arms]
    return [_winner_line(one, usual) for one in slices_along(arms, axis)]


def _winner_line(along: Slice[TimingRecord], usual: Usual) -> str:
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
    told = "; ".join(f"{name or RatioVerdict.UNDECIDED} {_values_in_words(values)}" for name, values in runs)
    changes = len({name for name, _ in runs if name}) > 1
    start = f"The fastest arm changes with {along.axis}" if changes else f"Fastest arm by {along.axis}"
    return f"{start} {where}: {told}."


def _values_in_words(values: Sequence[int]) -> str:
    if len(values) < 3:
        return f"at {join_words([str(value) for value in values])}"
    return f"from {values[0]} to {values[-1]}"


def _roof_lines(found: Sequence[Comparison], usual: Usual) -> list[str]:
    middle = central(_main_target(found))
    arms = [arm for arm in middle.arms if arm.roof_share >= 0]
    if not arms:
        return []
    shares = [
        f"{series_name(arm)} reaches {share(arm.roof_share)} "
        f"({figures_per_second(arm.useful_flops / arm.median_seconds, 'FLOP/s')})"
        for arm in arms
    ]
    where = f"{middle.first.target}, {case_in_words(middle.first, usual)}"
    line = f"Of the roof measured on this machine, {join_words(shares)} in {where}."
    over = any(arm.roof_share > 1 for arm in arms)
    return [f"{line} More than 100 % means that the roof was measured too low." if over else line]


def _noise_lines(found: Sequence[Comparison]) -> list[str]:
    arms = [arm for one in found for arm in one.arms]
    calls = sum(arm.calls for arm in arms)
    disturbed = sum(arm.disturbed * (arm.calls / calls if calls else 1 / len(arms)) for arm in arms)
    undecided = [arm for one in found for arm in one.contenders if judge(ratio_of(arm)) is RatioVerdict.UNDECIDED]
    restless = sum(not arm.steady for arm in arms)
    lines = []
    if disturbed > NOISY_SHARE:
        clock = " The times are CPU time, not wall time." if {arm.clock for arm in arms} == {"cpu"} else ""
        noisy = (
            f"; {count(len(undecided), 'ratio')} too noisy to call" if undecided else "; every ratio could be called"
        )
        lines.append(f"The machine was noisy: {share(disturbed)} of calls were disturbed{noisy}.{clock}")
    if restless:
        lines.append(f"{count(restless, 'timing')} of {len(arms)} never reached a steady state in the warm-up.")
    return lines


def _verdict_counts(ratios: Sequence[Ratio]) -> str:
    """Count the verdicts: faster in 9, slower in 2 and too noisy to call in 5 of 16 cases."""
    counts = Counter(judge(ratio) for ratio in ratios)
    if len(ratios) == 1:
        return f"{judge(ratios[0])} in the one case"
    if len(counts) == 1:
        return f"{judge(ratios[0])} in all {len(ratios)} cases"
    told = [f"{verdict} in {counts[verdict]}" for verdict in RatioVerdict if counts[verdict]]
    return f"{join_words(told)} of {len(ratios)} cases"


def _ratio_words(ratio: Ratio) -> str:
    return ratio_text(ratio.value, ratio.low, ratio.high, times=" x")


def _capital(text: str) -> str:
    """A sentence start; names of arms keep their case."""
    return f"T{text[1:]}" if text.startswith("the ") else text
