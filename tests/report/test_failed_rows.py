"""Reports of failed records: the outcome and the reason are there, and no figure, in any row of any format."""

import re
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gates import RunSide, compare_stored
from sdpa_onnx.core.records.gate_records import GateRecord, GateVerdict
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ConformanceRecord,
    ExportRecord,
    FormRecord,
    Outcome,
    Record,
    SaturationRecord,
    TimingRecord,
)
from sdpa_onnx.core.records.verdicts import Conformity, RatioVerdict
from sdpa_onnx.report.compare.gate_report import GateReport
from sdpa_onnx.report.compare.junit import render_junit
from sdpa_onnx.report.compare.markdown import render_gates
from sdpa_onnx.report.compare.terminal import gate_lines
from sdpa_onnx.report.conformance.run import ConformanceRun
from sdpa_onnx.report.conformance.terminal import conformance_lines
from sdpa_onnx.report.page.conformance_page import render_page
from sdpa_onnx.report.run.charts import charts
from sdpa_onnx.report.run.markdown import render_summary
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.run.terminal import print_report
from sdpa_onnx.report.timing.bench_table import bench_lines
from sdpa_onnx.report.timing.comparisons import comparisons, fastest
from tests.report.synthetic import header, tell
from tests.report.synthetic_bench import BASELINE, benched, timing
from tests.report.synthetic_timing import judged

_FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.UNSUPPORTED, Outcome.SKIPPED)
_REASON = "It does not run here."
# What a reader takes for a measurement: a decimal or scientific number, a share, a number with a unit or a factor.
_FIGURE = re.compile(r"\d\.\d|\de[-+]\d|\d\s?(%|ms|s|µs|ns|x|[KMG]?i?B|[TGM]?FLOP/s)(\W|$)|not finite")
# Columns that count rows or name an operator set; every other cell of a failed row is a name, a sentence or "-".
_COUNTS = {"n", "checks", "ok", "wrong", "not run", "graphs", "opset", "records", "number", "cases"}


def _failed(outcome: Outcome) -> list[Record]:
    """A record of each kind that reports print, without digits in its names."""
    names = {"target": "model", "case": "model", "runtime": "ort-cpu", "outcome": outcome, "reason": _REASON}
    return [
        AgreementRecord(**names, form="attention"),
        ExportRecord(**names, form="attention"),
        TimingRecord(**names, arm="ort-cpu", baseline="torch", group="model"),
        SaturationRecord(**names),
        FormRecord(**names, arm="blocked", site="attention"),
    ]


@pytest.mark.parametrize("outcome", _FAILURES)
def test_tables(outcome: Outcome) -> None:
    """Each cell of a row is a name, a sentence or "-", except counts of rows."""
    tables = all_tables(_failed(outcome))
    assert {table.title.partition(" ")[0] for table in tables} >= {"Not", "Agreement", "Exports"}
    for table in tables:
        for row in (row for section in table.sections for row in section.rows):
            for column, cell in zip(table.columns, row, strict=True):
                assert column.head in _COUNTS or not re.search(r"\d", cell), (table.title, column.head, cell)
    (not_ok,) = (table for table in tables if table.title == "Not ok")
    assert all(_REASON in row for section in not_ok.sections for row in section.rows)


@pytest.mark.parametrize("outcome", _FAILURES)
def test_reports_of_a_run(outcome: Outcome) -> None:
    """Findings, summary and terminal; no chart is drawn."""
    records, plain = _failed(outcome), header()
    console = Console(width=200, no_color=True)
    with console.capture() as printed:
        print_report(records, plain, console)
    for text in (*tell(records, plain), printed.get(), render_summary(records, plain, [])):
        body = text.partition("\nRun\n")[0].partition("## Environment")[0].partition("## Run")[0]
        lines = [line for line in body.splitlines() if not _is_note(line)]
        assert [line for line in lines if _FIGURE.search(line)] == []
    assert _REASON.rstrip(".") in printed.get()
    assert charts(records) == {}


def _is_note(line: str) -> bool:
    """Notes under the tables explain columns: "2^-25", "above 1"."""
    return any(word in line for word in ("sigma^2", "2^-25", "Ratio:", "1/sqrt", "# Attention: suite"))


@pytest.mark.parametrize("outcome", _FAILURES)
def test_a_failed_arm_of_a_benchmark(outcome: Outcome) -> None:
    """Alone, refused, and next to arms that ran: its rows have its outcome and no figure, its reason is printed."""
    arm = TimingRecord(
        target="files",
        case="case 128",
        group="case 128",
        arm="broken",
        baseline=BASELINE,
        outcome=outcome,
        reason=_REASON,
    )
    for results, refused in ((), (arm,)), ([benched(arm)], ()):
        text = "\n".join(line.text for line in bench_lines(results, refused, width=200))
        assert f"broken: {outcome}. {_REASON}" in text
        assert not re.search(r"\d", text)
    ran = [benched(timing(BASELINE), timing("ort-cpu", 0.8), arm), benched(timing(BASELINE, length=256), length=256)]
    rows = [line.text for line in bench_lines(ran, (), width=200) if line.text.strip().startswith("broken ")]
    assert len(rows) == 2
    assert all(outcome.value in row and not re.search(r"\d", row) for row in rows), rows


def test_best_and_worst_skip_a_failed_arm() -> None:
    """The fastest is one that ran; how often the failed arm has no time is said."""
    records: list[Record] = [one for length in (128, 256, 512) for one in judged(seq_len=length)]
    gone = "ort-cpu decomposed 18"
    last = next(one for one in records if isinstance(one, TimingRecord) and one.arm == gone)
    failed = TimingRecord(
        **{
            name: getattr(last, name) for name in ("target", "case", "group", "spec", "sizes", "dtype", "form", "opset")
        },
        runtime="ort-cpu",
        arm=gone,
        baseline="torch",
        outcome=Outcome.FAILED,
        reason=_REASON,
    )
    replaced = [failed if one is last else one for one in records]
    for one in comparisons(replaced):
        winner = fastest(one)
        assert winner is not None
        assert winner.outcome is Outcome.OK
    text = "\n".join(tell(replaced))
    assert "It has no time in 1 more case (failed)." in text
    assert f"Not compared where it has no time: {gone}." in text
    assert "faster in all 2 cases. It has no time" in text


@pytest.mark.parametrize("outcome", _FAILURES)
def test_gates(outcome: Outcome) -> None:
    """Failed on both sides, or on one: never a tie, never better; without a figure in any format."""
    failed = _failed(outcome)
    ran = TimingRecord(
        target="model",
        case="model",
        runtime="ort-cpu",
        arm="ort-cpu",
        baseline="torch",
        group="model",
        median_seconds=1.0,
        median_low=1.0,
        median_high=1.0,
        ratio=1.0,
        ratio_low=0.9,
        ratio_high=1.1,
        log_ratio_se=0.01,
        degrees=9.0,
        launches=4,
        confidence=0.99,
        disturbed=0.0,
        verdict=RatioVerdict.EQUAL,
        peak_memory_bytes=10**9,
        ran={"Attention": 1},
    )
    sides: list[tuple[list[Record], list[Record]]] = [(failed, failed), ([ran], failed[2:3]), (failed[2:3], [ran])]
    for base, head in sides:
        rows = compare_stored(RunSide(records=base), RunSide(records=head), GateLimits())
        assert rows
        assert GateVerdict.SAME not in {row.word for row in rows}
        assert not any(row.word is GateVerdict.BETTER and row.gate != "agreement" for row in rows)
        assert all(getattr(row, name) is None for row in rows for name in ("ratio", "amount", "base_bytes", "p_value"))
        _assert_no_figure(rows)


def _assert_no_figure(rows: list[GateRecord]) -> None:
    report = GateReport(rows=rows, base="base", head="head", how="Stored.", command="sdpa-onnx compare base head")
    table_rows = [line for line in render_gates(report).splitlines() if line.startswith("|")]
    assert [line for line in table_rows if _FIGURE.search(line)] == []
    assert [line.text for line in gate_lines(report, 200) if _FIGURE.search(line.text)] == []
    suites = ET.fromstring(render_junit(report))  # noqa: S314 - our own output
    for case in suites.iter("testcase"):
        name = re.sub(r" \(\d\)$", "", case.get("name") or "")  # readers merge test cases of one name
        texts = [name, *(f"{child.get('message')} {child.text}" for child in case)]
        assert [text for text in texts if re.search(r"\d", text)] == []


def test_a_page_of_refused_and_crashed_features() -> None:
    """Marks and reasons, and no error, ratio or number of nodes."""
    names = {"operator": "Attention", "target": "Attention", "dtype": "float", "group": "plain", "title": "plain"}
    rows = tuple(
        ConformanceRecord(
            **names, runtime="ort-cpu", feature=f"plain-{verdict}", verdict=verdict, outcome=outcome, reason=_REASON
        )
        for verdict, outcome in ((Conformity.REFUSED, Outcome.UNSUPPORTED), (Conformity.CRASHED, Outcome.FAILED))
    )
    run = ConformanceRun(records=rows)
    lines = [line.text for line in conformance_lines(run, 200)]
    assert [line for line in lines if _FIGURE.search(line) and not line.startswith("- 1 x: ")] == []
    assert any(_REASON.rstrip(".") in line for line in lines)
    body = re.sub(r"<(style|script)\b.*?</\1>", "", render_page(run), flags=re.DOTALL)
    shown = re.sub(r"<[^>]*>", " ", body)
    assert _FIGURE.findall(shown) == []
    assert "into None nodes" not in shown
