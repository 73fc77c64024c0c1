"""The table with one row per check, for `--verbose`; the tables of a report count them."""

from collections.abc import Sequence

from sdpa_onnx.core.records.records import AgreementRecord
from sdpa_onnx.report.text.labels import series_name, site_in_words
from sdpa_onnx.report.text.number_text import NOT_KNOWN, figure
from sdpa_onnx.report.text.table import Column, Section, Table
from sdpa_onnx.report.text.tally import bound_ratio, has_bound_ratio

__all__ = ["check_table"]


def check_table(checks: Sequence[AgreementRecord]) -> Table:
    """Every check with its inputs, sizes, verdict and largest error over its bound."""
    sections: dict[str, list[tuple[str, ...]]] = {}
    for check in checks:
        sections.setdefault(series_name(check), []).append(_row(check))
    return Table(
        title="Checks",
        heading="runtime, form, opset",
        columns=(
            Column(head="judged"),
            Column(head="inputs"),
            Column(head="sizes"),
            Column(head="verdict"),
            Column(head="error / bound", is_number=True),
        ),
        sections=tuple(Section(heading=name, rows=tuple(rows)) for name, rows in sections.items()),
    )


def _row(check: AgreementRecord) -> tuple[str, ...]:
    ratio = figure(bound_ratio(check)) if has_bound_ratio(check) else NOT_KNOWN
    sizes = " ".join(f"{axis}={size}" for axis, size in check.axes.items())
    return site_in_words(check), check.inputs, sizes, str(check.verdict or check.outcome), ratio
