"""The page of `compare`: the verdict, the times of HEAD over BASE as dots, what changed and the evidence."""

from collections.abc import Sequence

from sdpa_onnx.report.compare.gate_points import gate_ratios
from sdpa_onnx.report.compare.gate_report import (
    GateReport,
    alarms,
    by_verdict,
    changed_table,
    evidence_lines,
    headline,
    reached,
    summary,
    tally_table,
)
from sdpa_onnx.report.page.charts import page_chart
from sdpa_onnx.report.page.content import PageBlock, PageChart, PageContent, PageSection, PageTone
from sdpa_onnx.report.page.html import page_html
from sdpa_onnx.report.page.parts import page_data, page_table, with_facts
from sdpa_onnx.report.text.chart_titles import ChartKind
from sdpa_onnx.report.text.table import Table, text_table
from sdpa_onnx.report.timing.ratio_chart import ratio_chart

__all__ = ["compare_page", "render_page"]

_MOST_ROWS = 1_000
_READING = (
    "Each dot is the time of HEAD over that of BASE: left of the line at 1 is faster. If the bar crosses the line, "
    "nothing is claimed."
)


def render_page(report: GateReport) -> str:
    """Render the page; the same rows give the same text."""
    picture = gate_ratios(report)
    if picture is None:
        return page_html(compare_page(report, []))
    chart = ratio_chart(picture, ("BASE", *picture.series), title="Time of HEAD over BASE")
    return page_html(compare_page(report, [page_chart(ChartKind.RATIOS, chart, reading=_READING)]))


def compare_page(report: GateReport, charts: Sequence[PageChart]) -> PageContent:
    """Fill the page of a comparison."""
    changed, evidence = changed_table(report, most=_MOST_ROWS), evidence_lines(report)
    tables = [*([] if changed is None else [changed]), *([_evidence_table(evidence)] if evidence else [])]
    blocks: tuple[PageBlock, ...] = (*charts, *map(page_table, tables))
    doubts = alarms(report)
    return PageContent(
        title=f"Attention: {headline(report)}",
        subtitle=f"BASE {report.base}, HEAD {report.head}",
        verdict=summary(report),
        tone=PageTone.BAD if report.failing else PageTone.DOUBT if doubts else PageTone.GOOD,
        findings=(*doubts, f"{report.how} {reached(report)}".rstrip()),
        steps=(),
        sections=(
            PageSection(anchor="changed", title="What changed", blocks=blocks),
            PageSection(anchor="checks", title="Checks by gate", blocks=(page_table(tally_table(report)),)),
            with_facts([("BASE", report.base), ("HEAD", report.head)], report.command),
        ),
        data=page_data(by_verdict(report.rows)),
    )


def _evidence_table(lines: Sequence[tuple[str, str]]) -> Table:
    return text_table("Evidence", ({"verdict": label, "evidence": text} for label, text in lines))
