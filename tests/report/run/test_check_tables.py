"""The tables in addition to the judgements of a file: where an error begins, and planted faults."""

import io

import pytest
from rich.console import Console

from sdpa_onnx.core.records.records import LocatedRecord, Outcome, PlantedRecord, Record, Subject, Verdict
from sdpa_onnx.report.run.check_tables import located_table, planted_table
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.run.terminal import print_tables
from tests.conftest import GoldenCheck
from tests.report.synthetic import check


def _planted(fault: str, outcome: Outcome, **fields: str) -> PlantedRecord:
    usual = {"target": "block.onnx", "runtime": "ort-cpu", "site": "attend", "fault": fault}
    return PlantedRecord(outcome=outcome, **(usual | fields))  # type: ignore[arg-type]


def _located(
    site: str, diagnosis: str, outcome: Outcome = Outcome.DISAGREES, subject: Subject = Subject.ATTENTION
) -> LocatedRecord:
    return LocatedRecord(
        target="block.onnx", runtime="ort-cpu", outcome=outcome, subject=subject, site=site, diagnosis=diagnosis
    )


def _records() -> list[Record]:
    found = "The first bad node on ort-cpu is 'project' (MatMul): fed the reference's values, its output 'q' is wrong."
    return [
        check(outcome=Outcome.DISAGREES, verdict=Verdict.WRONG, max_bound_ratio=12.0, diagnosis="Off by 1 %."),
        _located("y", found, subject=Subject.OUTPUT),
        _located("attend", "No bad node on ort-cpu: 3 nodes were judged,\neach by itself.", Outcome.OK),
        _planted("scale-missing", Outcome.OK),
        _planted("heads-tiled", Outcome.OK),
        _planted("maximum-not-subtracted", Outcome.FAILED),
        _planted("nan-swallowed", Outcome.FAILED),
        _planted("batch-reversed", Outcome.SKIPPED),
        _planted("scale-missing", Outcome.OK, runtime="openvino"),
        _planted("output-zero", Outcome.FAILED, target="other.onnx", site="sdpa"),
    ]


@pytest.mark.parametrize("width", [100, 60])
def test_whole_text(width: int, golden: GoldenCheck) -> None:
    """Both tables as a terminal shows them, wide and narrow."""
    raw = io.StringIO()
    print_tables(
        [record for record in _records() if isinstance(record, PlantedRecord | LocatedRecord)],
        Console(file=raw, width=width),
    )
    golden(f"judge_tables_{width}.txt", raw.getvalue())


def test_rows() -> None:
    """One row for each attention on each runtime; what was caught is counted without what is no fault there."""
    table = planted_table(_records())
    assert [(section.heading, section.rows) for section in table.sections] == [
        (
            "block.onnx",
            (
                ("ort-cpu", "attend", "2 of 4", "maximum-not-subtracted and nan-swallowed", "batch-reversed"),
                ("openvino", "attend", "1 of 1", "none", "none"),
            ),
        ),
        ("other.onnx", (("ort-cpu", "sdpa", "0 of 1", "output-zero", "none"),)),
    ]


def test_a_diagnosis_is_one_line() -> None:
    """Line ends in a diagnosis do not break the table."""
    (section,) = located_table(_records()).sections
    assert section.rows[1] == ("ort-cpu", "attend", "No bad node on ort-cpu: 3 nodes were judged, each by itself.")


def test_nothing_to_show() -> None:
    """Without such records there are no such tables."""
    assert (located_table([check()]).rows, planted_table([check()]).rows) == (0, 0)
    titles = {table.title for table in all_tables([check()])}
    assert not titles & {"Where the error begins", "Planted faults"}
    assert {"Where the error begins", "Planted faults"} <= {table.title for table in all_tables(_records())}
