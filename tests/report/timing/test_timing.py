"""Verdicts on ratios in the report: never more than the record proves, and doubts first."""

import math
import re
from pathlib import Path

import msgspec
import pytest

from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.paired import RatioEstimate
from sdpa_onnx.measure.timing_notice import TimingNotice
from sdpa_onnx.report.run.charts import charts
from sdpa_onnx.report.text.svg import to_svg
from sdpa_onnx.report.timing.alarms import timing_alarms
from sdpa_onnx.report.timing.chart_points import chart_series
from sdpa_onnx.report.timing.comparisons import ArmRatio, comparisons, fastest
from tests.conftest import GoldenCheck
from tests.report.synthetic import tell
from tests.report.synthetic_timing import (
    CLOCKS,
    DECOMPOSED,
    FUSED,
    TORCH,
    cells,
    judged,
    launch_records,
    noisy,
    table_of,
)

CLAIM = re.compile(r"\b(faster|slower|fastest|equal)\b")


def test_whole_findings(golden: GoldenCheck) -> None:
    """All lines of a run with every verdict."""
    golden("findings_launches.txt", "\n".join(tell(launch_records())) + "\n")


@pytest.mark.parametrize("verdict", [RatioVerdict.FASTER, RatioVerdict.SLOWER, RatioVerdict.EQUAL, None])
def test_a_noisy_record_is_never_told_as_anything_else(verdict: RatioVerdict | None) -> None:
    """One noisy arm makes its whole table noisy, whatever the records or intervals of the other arms."""
    torch, other, fused = noisy()
    records = [torch, msgspec.structs.replace(other, verdict=verdict), fused]
    (one,) = comparisons([*records])
    assert [one.judged(arm).verdict for arm in one.contenders] == [RatioVerdict.NOISY] * 2
    assert one.between(one.arms[1], one.arms[2]).verdict is RatioVerdict.NOISY
    assert one.between(one.arms[0], one.arms[2]).verdict is RatioVerdict.NOISY
    assert fastest(one) is None
    lines = [line for line in tell(records) if not line.startswith("No arm is clearly fastest")]
    assert not [line for line in lines if CLAIM.search(line)]
    assert cells(records, "Time of a call", "verdict") == ["-", "noisy", "noisy"]


def test_noisy_tables_are_told_first() -> None:
    """Before any ratio: which comparisons are noisy, and what it means."""
    lines = tell([*judged(), *noisy()])
    assert lines[1] == (
        "NOISY in 1 of 2 comparisons (length 256): the time of a clone of the baseline "
        "differed from that of the baseline, so its ratios are not reliable."
    )


def test_a_noisy_ratio_is_not_drawn() -> None:
    """A bar far below 1 would look faster; the caption counts what is missing."""
    records = [*judged(seq_len=64), *judged(seq_len=128), *noisy(256)]
    (series,) = chart_series([*records])
    assert {point.x for point in series.relative} == {64, 128}
    assert {point.x for point in series.absolute} == {64, 128, 256}
    assert series.fixed.endswith("2 noisy ratios not drawn")


def test_a_chart_of_noisy_ratios_alone_is_sound() -> None:
    """A panel without a point still draws its line at 1."""
    records = [*noisy(64), *noisy(128), *noisy(256)]
    (chart,) = charts([*records]).values()
    assert "NaN" not in to_svg(chart)


@pytest.mark.parametrize(
    ("ratio", "ends", "verdict"),
    [
        (0.9, (0.85, 1.0), RatioVerdict.FASTER),
        (0.9, (0.85, 1.2), RatioVerdict.FASTER),
        (1.1, (1.0, 1.2), RatioVerdict.SLOWER),
        (1.1, (0.9, 1.2), RatioVerdict.FASTER),
    ],
)
def test_a_record_that_contradicts_itself_is_inconclusive(
    ratio: float, ends: tuple[float, float], verdict: RatioVerdict
) -> None:
    """A verdict of faster or slower with an interval that contains 1 is not repeated."""
    torch, other, fused = judged()
    wrong = msgspec.structs.replace(fused, ratio=ratio, ratio_low=ends[0], ratio_high=ends[1], verdict=verdict)
    (one,) = comparisons([torch, other, wrong])
    assert one.judged(wrong).verdict is RatioVerdict.INCONCLUSIVE


def test_the_verdict_of_the_record_is_believed() -> None:
    """An interval that alone would mean faster does not, if the record judged the whole table (Holm)."""
    torch, other, fused = judged({DECOMPOSED: (0.96, RatioVerdict.INCONCLUSIVE), FUSED: (0.9, RatioVerdict.FASTER)})
    (one,) = comparisons([torch, other, fused])
    assert one.judged(other).verdict is RatioVerdict.INCONCLUSIVE
    assert one.judged(other).ratio.high < 1


def test_arms_that_share_a_baseline_are_compared_by_welch() -> None:
    """Standard errors add in squares, and the line states that the pairing is lost."""
    # t quantile 99.5 % at 10 degrees of freedom: 3.16927.
    first, second = (
        ArmRatio(
            value=value,
            low=value * math.exp(-3.16927 * error),
            high=value * math.exp(3.16927 * error),
            standard_error=error,
            degrees=10.0,
        )
        for value, error in ((0.90, 0.003), (0.96, 0.004))
    )
    told = first.over(second)
    assert told.standard_error == pytest.approx(0.005)
    # (9 + 16)^2 / (81 / 10 + 256 / 10), by hand.
    assert told.degrees == pytest.approx(625 / 33.7)
    # t quantile 99.5 % at 18.55 degrees of freedom: between 2.878 (18) and 2.861 (19), from a printed table.
    half = math.log(told.high / told.value) / 0.005
    assert 2.861 < half < 2.878
    assert math.log(told.value / told.low) / 0.005 == pytest.approx(half)
    assert not told.is_paired


def test_welch_is_narrower_than_ends_by_ends() -> None:
    """What the division of ends leaves open the standard errors decide."""
    ratios = (0.90, 0.925)
    known, unknown = (
        [
            ArmRatio(value=value, low=value * 0.985, high=value * 1.015, standard_error=error, degrees=9.0)
            for value in ratios
        ]
        for error in (0.0045, None)
    )
    assert known[0].over(known[1]).high < 1 <= unknown[0].over(unknown[1]).high
    assert unknown[0].over(unknown[1]).is_paired


def test_the_lost_pairing_is_said() -> None:
    """The line on two graphs over one baseline states how they were compared; the lines over the baseline do not."""
    lines = [line for line in tell(judged()) if " on ort-cpu against " in line]
    assert [line.endswith("with torch, not with the other, so the intervals are wider.") for line in lines] == [
        False,
        False,
        True,
    ]


def test_a_baseline_in_the_other_place_swaps_the_word() -> None:
    """Torch over a graph that is faster is slower, with the ratio turned over."""
    (one,) = comparisons([*judged()])
    torch, other, _ = one.arms
    told = one.between(torch, other)
    assert told.verdict is RatioVerdict.SLOWER
    assert told.ratio.value == pytest.approx(1 / 0.96)


def test_clocks_that_differ_are_told() -> None:
    """Both ratios are in one line at the top, and the warning is not repeated below."""
    torch, other, fused = judged()
    told = msgspec.structs.replace(fused, ratio_wall=0.9, ratio_cpu=0.95, warnings=(CLOCKS,))
    line = (
        f"Wall time and CPU time give different ratios for 1 arm ({FUSED} over torch for length 512: "
        "0.90 x by wall time, 0.95 x by CPU time): one arm waits or sleeps."
    )
    assert timing_alarms([torch, other, told]) == [line]
    assert tell([torch, other, told])[1] == line
    assert not [line for line in tell([torch, other, told]) if line.startswith("Warning")]
    assert table_of([torch, other, told], "Time of a call").footnotes == ()
    assert timing_alarms([torch, other, fused]) == []


def test_another_timing_at_the_same_time_is_told(tmp_path: Path) -> None:
    """The warning of the process that detected it is recognised, printed once, and not repeated."""
    notice = TimingNotice(folder=tmp_path, handle=0)
    notice._met[1234] = None  # a process that is not ours, without starting one
    warnings = notice.warnings()
    assert len(warnings) == 1
    together = [msgspec.structs.replace(one, warnings=warnings) for one in judged()]
    lines = tell([*together, *judged(seq_len=64)])
    assert lines[1] == (
        "Another timing ran on this machine during 1 of 2 comparisons (length 512): repeat when the machine is quiet."
    )
    assert not [line for line in lines if line.startswith("Warning")]


def test_many_noisy_cases_are_counted() -> None:
    """Three cases are named, the others counted."""
    records = [record for length in (64, 128, 256, 512, 1024) for record in noisy(length)]
    (line,) = timing_alarms([*records])
    assert "NOISY in 5 of 5 comparisons (" in line
    assert "length 256; and 2 more): the time of a clone" in line


def test_a_pair_is_judged_at_the_alpha_of_the_look() -> None:
    """An interval that was widened for several looks is not narrowed again between two arms."""
    wide = []
    for value, error in ((0.90, 0.003), (0.96, 0.004)):
        estimate = RatioEstimate(log_ratio=math.log(value), standard_error=error, degrees=10.0, launches=4)
        low, high = estimate.interval(0.002)
        wide.append(ArmRatio(value=value, low=low, high=high, standard_error=error, degrees=10.0))
    told = wide[0].over(wide[1])
    # t quantile 99.9 % at 18.55 degrees of freedom: between 3.610 (18) and 3.579 (19), from a printed table.
    assert 3.579 < math.log(told.high / told.value) / 0.005 < 3.610


def test_arms_of_several_thread_counts_are_one_comparison() -> None:
    """Threads may be what is compared; without the baseline in its comparison an arm would have no ratio."""
    torch, other, fused = judged()
    (one,) = comparisons([torch, other, msgspec.structs.replace(fused, threads=2)])
    assert [arm.arm for arm in one.arms] == [TORCH, DECOMPOSED, FUSED]


def test_the_same_arms_at_several_thread_counts_are_several_comparisons() -> None:
    """Suites time the same arms again with more threads."""
    again = [msgspec.structs.replace(one, threads=2) for one in judged()]
    assert [len(one.arms) for one in comparisons([*judged(), *again])] == [3, 3]
