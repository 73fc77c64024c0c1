"""The tables of timing: each figure in its column, intervals with their confidence, arms that have no time."""

import msgspec
import pytest

from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.run.markdown import render_summary
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.text.chart_titles import how_to_read
from tests.conftest import GoldenCheck
from tests.report.synthetic import comparison, header, tell, with_ratios
from tests.report.synthetic_timing import (
    DECOMPOSED,
    FUSED,
    cells,
    judged,
    judged_arm,
    launch_records,
    not_timed,
    table_of,
    two_versions,
    with_costs,
)
from tests.report.text.test_printing import printed


def test_whole_terminal(golden: GoldenCheck) -> None:
    """The same on a plain 80-column terminal."""
    golden("terminal_launches.txt", printed(launch_records()))


def test_whole_summary(golden: GoldenCheck) -> None:
    """The same as Markdown."""
    golden("summary_launches.md", render_summary(launch_records(), header(), ["time-over-length-sdpa"]))


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    """The tables of launches fit too."""
    assert max(len(line) for line in printed(launch_records(), width=width).splitlines()) <= width


@pytest.mark.parametrize("needed", [0, 1, 6])
def test_inconclusive_says_what_would_help(needed: int) -> None:
    """About how many launches more, where the record knows it."""
    torch, other, fused = judged({DECOMPOSED: (0.9, RatioVerdict.FASTER), FUSED: (0.985, RatioVerdict.INCONCLUSIVE)})
    records = [torch, other, msgspec.structs.replace(fused, launches_needed=needed)]
    more = f" ({needed} more)" if needed else ""
    assert cells(records, "Time of a call", "verdict") == ["-", "faster", f"inconclusive{more}"]


@pytest.mark.parametrize(
    ("confidence", "head", "chance"),
    [
        (0.95, "ratio [95 %]", "Of 2 intervals of 95 %, 0.1 are expected"),
        (0.99, "ratio [99 %]", "Of 2 intervals of 99 %, 0.02 are expected"),
    ],
)
def test_the_confidence_is_told_as_it_is(confidence: float, head: str, chance: str) -> None:
    """An interval of 99 % is not printed as one of 95 %, nor the reverse."""
    table = table_of(judged(confidence=confidence), "Time of a call")
    assert head in [column.head for column in table.columns]
    assert chance in table.note


def test_the_baseline_has_no_interval_of_its_own() -> None:
    """The confidence of its record does not make the head ambiguous."""
    torch, other, fused = judged()
    records = [msgspec.structs.replace(torch, confidence=0.95), other, fused]
    assert "ratio [99 %]" in [column.head for column in table_of(records, "Time of a call").columns]


def test_confidences_that_differ_stand_in_each_row() -> None:
    """Records of two versions in one report: each interval with its own confidence."""
    records = [*judged(), *comparison(seq_len=64)]
    table = table_of(records, "Time of a call")
    assert [column.head for column in table.columns][2] == "ratio"
    ratios = [row[2] for section in table.sections for row in section.rows]
    assert [cell.rpartition("] ")[2] for cell in ratios] == ["baseline", "95 %", "95 %", "baseline", "99 %", "99 %"]
    assert "Of 2 intervals of 95 % and 2 intervals of 99 %, 0.12 are expected" in table.note


@pytest.mark.parametrize(
    ("confidence", "text"),
    [
        ("", "The bars are 95 % intervals: if"),
        ("95 %", "The bars are 95 % intervals: if"),
        ("99 %", "The bars are intervals, 95 % of times and 99 % of ratios: if"),
    ],
)
def test_a_chart_says_what_its_bars_are(confidence: str, text: str) -> None:
    """The interval of the median is always of 95 %, that of the ratio of the confidence in the records."""
    assert text in how_to_read("time-over-length-sdpa", ratio_confidence=confidence)


def test_summary_says_what_the_bars_of_its_charts_are() -> None:
    """The confidence of the records reaches the text under the chart."""
    names = ["time-over-length-sdpa"]
    assert "95 % of times and 99 % of ratios" in render_summary([*judged()], header(), names)
    assert "The bars are 95 % intervals" in render_summary([*comparison()], header(), names)


def test_an_arm_that_failed_stands_in_its_table_and_among_what_is_not_ok() -> None:
    """The reason of the worker is printed in full; the others keep their times."""
    reason = "The worker of ort-cpu blocked 18 was killed by signal 11 (SIGSEGV)."
    records = [*judged(), not_timed(Outcome.FAILED, reason)]
    assert cells(records, "Time of a call", "median [95 %]")[-1] == "failed"
    assert cells(records, "Not ok", "why") == [reason]
    assert f"1 timing failed (sdpa, ort-cpu blocked 18, batch 1, length 512, d_k 64): {reason}" in tell(records)


def test_a_machine_that_cannot_decide_says_so() -> None:
    """More threads than idle cores: no table of times, one reason."""
    reason = "Undecidable on this machine now: 2 threads are asked for and 1 core is idle."
    records = [
        msgspec.structs.replace(one, outcome=Outcome.SKIPPED, reason=reason, median_seconds=0.0) for one in judged()
    ]
    assert [table.title for table in all_tables([*records])] == ["Not ok"]
    assert set(cells(records, "Not ok", "why")) == {reason}
    assert any("3 timings skipped" in line and reason in line for line in tell(records))


def test_what_a_call_costs() -> None:
    """Every cost has its column and unit; what was not measured is a stroke."""
    torch, other, fused = judged()
    bare = {"idle_seconds": None, "kernel_seconds": None, "host_seconds": 0.0, "peak_memory_bytes": None}
    table = table_of([msgspec.structs.replace(torch, **bare), other, fused], "What a call costs")
    (section,) = table.sections
    assert section.rows[0][1:] == ("12.3 ms", "24.0 ms", "10.8 ms", "-", "-", "-", "-")
    assert section.rows[2][-3:] == ("6.26 ms", "399 µs", "12.3 MiB")
    assert section.heading == "length 512; 4 launches"


def test_rates_stand_beside_their_ceilings() -> None:
    """Useful and executed work, exponentials and bytes; a share only where the ceiling is known."""
    torch, other, fused = judged()
    half = {"useful_flops": fused.useful_flops // 2, "bound_by": "memory"}
    records = [torch, other, msgspec.structs.replace(fused, **half)]
    (section,) = table_of(records, "Work of a call").sections
    assert section.rows[2] == (FUSED, "40.3 (41 %)", "80.7 (82 %)", "0.315 (11 %)", "0.315", "memory", "1")
    (without,) = [table for table in all_tables([*records]) if table.title == "Work of a call"]
    assert without.sections[0].rows[2][1:5] == ("40.3", "80.7", "0.315", "0.315")


def test_a_cold_cache_is_said() -> None:
    """Times of a cold cache are not mixed up with warm ones."""
    records = [msgspec.structs.replace(one, cache="cold") for one in judged()]
    for title in ("Time of a call", "What a call costs", "Work of a call"):
        assert table_of(records, title).sections[0].heading.endswith("; 4 launches; cold cache")


def test_what_differs_between_arms_is_told() -> None:
    """Version, environment and options of each arm, where they differ."""
    (section,) = table_of(two_versions(), "What the arms ran on").sections
    assert section.rows == (
        ("torch", "torch 2.13.0", "this environment", "-", "1"),
        ("ort-cpu@old", "onnxruntime 1.31.0", "old", "-", "1"),
        ("ort-cpu", "onnxruntime 1.32.0", "this environment", "intra_op.allow_spinning=1", "1"),
    )


def test_what_does_not_differ_is_not_told() -> None:
    """Another package for another runtime is no difference between arms."""
    assert "What the arms ran on" not in [table.title for table in all_tables([*judged()])]


def test_records_of_earlier_versions_keep_their_table() -> None:
    """No column of launches where there were none."""
    records = with_ratios(comparison(), {FUSED: (0.9, 0.85, 0.95)})
    assert [table.title for table in all_tables([*records])] == ["Time of a call"]
    heads = [column.head for column in table_of(records, "Time of a call").columns]
    assert heads == ["arm", "median [95 %]", "ratio [95 %]", "useful GFLOP/s", "roof", "nodes run"]


def test_the_smallest_slow_down_is_told() -> None:
    """What the comparison would have found, with the digits that it has."""
    torch, other, fused = judged()
    records = [
        torch,
        msgspec.structs.replace(other, detectable=None),
        msgspec.structs.replace(fused, detectable=0.0214),
    ]
    assert cells(records, "Time of a call", "slowdown found") == ["-", "-", "2.1 %"]


def test_one_arm_alone_makes_a_table() -> None:
    """A baseline without contenders has launches, costs and no verdict."""
    torch = with_costs(comparison()[0])
    assert cells([torch], "Time of a call", "verdict") == ["-"]
    assert judged_arm(torch, 0.9, RatioVerdict.FASTER).verdict is RatioVerdict.FASTER
