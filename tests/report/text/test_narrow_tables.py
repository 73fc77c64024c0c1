"""Every printed table fits 60 columns; only commands, which users copy, are never broken."""

from collections.abc import Callable

import pytest

from sdpa_onnx.core.compare.history import history_of
from sdpa_onnx.core.records.records import FormRecord, Record, RuntimeRecord, Sizes
from sdpa_onnx.report.compare.history_text import history_tables
from sdpa_onnx.report.run.check_rows import check_table
from sdpa_onnx.report.run.form_table import form_table
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.text.layout import table_lines
from sdpa_onnx.report.text.result_text import ResultText, result_lines
from sdpa_onnx.report.text.table import Column, Section, Table
from sdpa_onnx.report.timing.bench_table import bench_lines
from sdpa_onnx.workflows.check.available_runtimes import survey_runtimes
from tests.report.compare import test_gate_report as gates
from tests.report.conformance import test_terminal as conformance
from tests.report.synthetic import case_of, checks_of, quick_records, troubled_records
from tests.report.synthetic_bench import benched, failed, over_lengths, timing
from tests.report.synthetic_history import upgraded
from tests.report.synthetic_timing import launch_records, noisy, two_versions
from tests.report.text.test_printing import saturation_records

_WIDTH = 60


def _forms() -> list[FormRecord]:
    """A choice of forms with every column in use."""
    sizes = Sizes(batch_size=1, q_seq_len=1, kv_seq_len=1, head_dim=64, q_num_heads=8)
    figures = {"median_seconds": 0.001, "ratio": 1.0, "ratio_low": 0.99, "ratio_high": 1.01}
    slow = {"workarounds": ("expand-mask", "finite-mask"), "reason": "2.00 x."}
    return [
        FormRecord(arm=form, form=form, site="decoder", runtime="ort-cpu", opset=23, sizes=sizes, **figures, **more)  # type: ignore[arg-type]
        for form, more in (("attention", {"chosen": True}), ("decomposed", slow))
    ]


def _runtimes() -> list[RuntimeRecord]:
    return list(survey_runtimes())


_RECORDS: dict[str, Callable[[], list[Record]]] = {
    "quick": quick_records,
    "troubled": troubled_records,
    "saturation": saturation_records,
    "launches": launch_records,
    "noisy": lambda: [*noisy()],
    "two versions": lambda: [*two_versions()],
    "runtimes": lambda: [*_runtimes()],
    "forms": lambda: [*_forms()],
}


def _too_wide(lines: list[str]) -> list[str]:
    return [line for line in lines if len(line) > _WIDTH and not line.lstrip(" -").startswith("sdpa-onnx ")]


def _laid_out(tables: list[Table]) -> list[str]:
    assert tables
    return [line.text for table in tables for line in table_lines(table, _WIDTH)]


@pytest.mark.parametrize("name", _RECORDS)
def test_tables_of_records_fit(name: str) -> None:
    """The tables of a run, of `runtimes`, `saturation`, `--form auto` and of timings."""
    assert _too_wide(_laid_out(list(all_tables(_RECORDS[name]())))) == []


def test_other_tables_fit() -> None:
    """The tables of `verify --verbose`, of the history, of `compare` and of `conformance`."""
    checks = check_table(list(checks_of("sdpa", case_of())))
    assert _too_wide(_laid_out([checks, *history_tables(history_of(upgraded()))])) == []
    assert _too_wide(gates.text(gates.report(gates.mixed()), _WIDTH).splitlines()) == []
    for run in (conformance.run_of(*conformance.rows()), conformance.two_runtimes()):
        assert _too_wide(conformance.printed(run, _WIDTH).splitlines()) == []


def test_tables_of_bench_fit() -> None:
    """A comparison with all columns, one over lengths, and an arm that failed."""
    arm = timing("ort-cpu attention 23", 0.8, p50_seconds=1e-3, p90_seconds=2e-3, p99_seconds=3e-3)
    one = benched(timing("torch"), arm, failed("ort-cpu blocked 18", "The worker was killed by signal 11."))
    for results in ([one], over_lengths({64: 1.2, 512: 1.0, 2048: 0.62})):
        assert _too_wide([line.text for line in bench_lines(results, (), width=_WIDTH)]) == []


def test_a_table_in_the_details_fits() -> None:
    """`export --form auto` and `convert --form auto` print the forms between their sentences, indented."""
    result = ResultText(verdict="Wrote F.onnx.", details=("One sentence.", form_table(_forms())))
    lines = [line.text for line in result_lines(result, _WIDTH, with_details=True, with_tables=False)]
    assert "  Forms" in lines
    assert _too_wide(lines) == []


def test_columns_that_do_not_fit_follow_with_the_names_of_the_rows() -> None:
    """Numbers are never cut, and each block names its rows."""
    columns = (Column(head="arm"), *(Column(head=head, is_number=True) for head in ("first", "second")))
    table = Table(title="T", heading="", columns=columns, sections=(Section(heading="", rows=(("a", "1.25", "2.5"),)),))
    assert [line.text for line in table_lines(table, 12)] == [
        "T",
        "arm  first",
        "---  -----",
        "a     1.25",
        "",
        "arm  second",
        "---  ------",
        "a       2.5",
    ]
