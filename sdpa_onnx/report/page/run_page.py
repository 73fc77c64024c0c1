"""The page of a run: which section holds what, in the order in which a reader asks."""

from collections.abc import Sequence

from sdpa_onnx.core.records.records import ConformanceRecord, Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.conformance.run import ConformanceRun
from sdpa_onnx.report.page.agreement_matrix import agreement_blocks
from sdpa_onnx.report.page.conformance_page import conformance_blocks
from sdpa_onnx.report.page.content import (
    PageBlock,
    PageChart,
    PageContent,
    PageSection,
    PageStep,
    PageTable,
    PageText,
)
from sdpa_onnx.report.page.parts import page_data, page_table, tone_of, with_facts
from sdpa_onnx.report.run.environment import environment_rows
from sdpa_onnx.report.run.findings import EXPORTS, NUMBERS, TIMES, WARNINGS
from sdpa_onnx.report.run.gathered_run import GatheredRun, gather_run
from sdpa_onnx.report.saturation.findings import SCALING_BUYS, saturation_findings, saturation_records
from sdpa_onnx.report.saturation.tables import PREDICTION_TITLE, SATURATION_TITLE
from sdpa_onnx.report.text.chart_titles import ChartKind, is_saturation_chart
from sdpa_onnx.report.text.labels import usual_factors
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.text.table import Table
from sdpa_onnx.report.timing.case_table import case_table
from sdpa_onnx.report.timing.cost_tables import COST_TITLE, WORK_TITLE
from sdpa_onnx.report.timing.tables import TIMING_TITLE
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["page_of", "run_page"]

RECORDS_FILE = "records.jsonl"


def run_page(
    records: Sequence[Record],
    header: RunHeader,
    charts: Sequence[PageChart],
    *,
    known: SortedFindings | None = None,
) -> PageContent:
    """Fill the page of a run.

    Args:
        known: The records sorted by the file of known findings; None without such a file.
    """
    return page_of(gather_run(records, header, known=known), charts)


def page_of(run: GatheredRun, charts: Sequence[PageChart]) -> PageContent:
    """Fill the page of a gathered run."""
    screen, header = run.screen, run.header
    first, *others = screen.verdict
    lead = case_table(screen.groups) if screen.groups.groups else screen.medians
    return PageContent(
        title=f"Attention: suite {header.suite}",
        subtitle=", ".join(
            word for word in (_machine(header), count(header.threads, "thread"), header.started) if word
        ),
        verdict=first,
        tone=tone_of(screen.outcome),
        findings=(*others, *([screen.trust] if screen.trust else [])),
        steps=tuple(
            PageStep(sentence=step.sentence[:1].upper() + step.sentence[1:], command=step.command)
            for step in screen.steps
        ),
        sections=tuple(_sections(run, charts, lead)),
        data=page_data(run.records, RECORDS_FILE),
    )


def _machine(header: RunHeader) -> str:
    return header.environment.get("cpu", "")


def _sections(run: GatheredRun, charts: Sequence[PageChart], lead: Table | None) -> list[PageSection]:
    records = run.records
    tables = {table.title: table for table in run.tables}
    ratios = [chart for chart in charts if chart.name == ChartKind.RATIOS]
    saturation = [chart for chart in charts if is_saturation_chart(chart.name)]
    others = [chart for chart in charts if chart not in (*ratios, *saturation)]

    def taken(*titles: str, folded: bool = False) -> list[PageTable]:
        found = [tables.pop(title) for title in titles if title in tables]
        return [page_table(table, is_folded=folded) for table in found]

    def words(title: str) -> list[PageText]:
        found = run.sentences.get(title, ())
        return [PageText(lines=tuple(found), title=f"{title} in words")] if found else []

    troubles = taken("Not ok", "Where the error begins")
    faster: list[PageBlock] = [
        *ratios,
        *([page_table(lead)] if lead is not None else []),
        *words(TIMES),
        *taken(TIMING_TITLE),
    ]
    costs: list[PageBlock] = [*others, *taken(COST_TITLE, WORK_TITLE, folded=True)]
    first, rest_of_claims = _claims(records)
    scale: list[PageBlock] = [
        *first,
        *saturation,
        *rest_of_claims,
        *taken(SATURATION_TITLE, PREDICTION_TITLE, folded=True),
    ]
    agreement: list[PageBlock] = [
        *agreement_blocks(records, usual_factors(records)),
        *words(NUMBERS),
        *taken("Agreement with the float64 oracle", folded=True),
    ]
    rows = tuple(record for record in records if isinstance(record, ConformanceRecord))
    rest: list[PageBlock] = [
        *words(EXPORTS),
        *words(WARNINGS),
        *map(page_table, tables.values()),
        *conformance_blocks(ConformanceRun(records=rows)),
    ]
    return [
        PageSection(anchor="troubles", title="What is not ok", blocks=tuple(troubles)),
        PageSection(anchor="ratios", title="Faster or slower", blocks=tuple(faster)),
        PageSection(anchor="agreement", title="Are the numbers right", blocks=tuple(agreement)),
        PageSection(anchor="time", title="Time, size and the roof", blocks=tuple(costs)),
        PageSection(anchor="scale", title="What dividing by sqrt(d_k) does", blocks=tuple(scale)),
        PageSection(anchor="exports-and-notes", title="Exports and notes", blocks=tuple(rest)),
        with_facts(environment_rows(run.header), run.header.command),
    ]


def _claims(records: Sequence[Record]) -> tuple[list[PageBlock], list[PageBlock]]:
    """The effect of the scale in the first sentence, always shown; the other claims in a fold."""
    lines = tuple(saturation_findings(saturation_records(records)))
    shown = next((place for place, line in enumerate(lines, 1) if SCALING_BUYS in line), 1)
    first: list[PageBlock] = [PageText(lines=lines[:shown])] if lines else []
    others: list[PageBlock] = [PageText(lines=lines[shown:], title="All claims in words")] if lines[shown:] else []
    return first, others
