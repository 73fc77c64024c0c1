"""The page of a run: which section holds what, in the order in which a reader asks."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sdpa_onnx.core.records.records import Outcome, Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.page.agreement_matrix import agreement_blocks
from sdpa_onnx.report.page.content import (
    PageBlock,
    PageChart,
    PageContent,
    PageData,
    PageSection,
    PageStep,
    PageTable,
    PageText,
    PageTone,
)
from sdpa_onnx.report.run.environment import environment_rows
from sdpa_onnx.report.run.findings import EXPORTS, NUMBERS, TIMES, WARNINGS, finding_sections
from sdpa_onnx.report.run.first_screen import first_screen
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.saturation.findings import saturation_findings, saturation_records
from sdpa_onnx.report.saturation.tables import PREDICTION_TITLE, SATURATION_TITLE
from sdpa_onnx.report.text.chart_titles import ChartKind, is_saturation_chart
from sdpa_onnx.report.text.labels import usual_factors
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.text.table import Column, Section, Table
from sdpa_onnx.report.text.tally import outcome_of
from sdpa_onnx.report.timing.case_table import case_table
from sdpa_onnx.report.timing.cost_tables import COST_TITLE, WORK_TITLE
from sdpa_onnx.report.timing.tables import TIMING_TITLE
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["page_data", "page_table", "run_page"]

# Groups of timed cases in the table below the first picture.
_MOST_GROUPS = 20
_TONES = {
    Outcome.OK: PageTone.GOOD,
    Outcome.DISAGREES: PageTone.BAD,
    Outcome.FAILED: PageTone.BAD,
    Outcome.UNSUPPORTED: PageTone.DOUBT,
    Outcome.SKIPPED: PageTone.DOUBT,
}
# Greatest numbers of rows in one table and of records in the page, and of bytes of these records.
_MOST_ROWS = 1_000
_MOST_RECORDS, _MOST_BYTES = 2_000, 900_000
# Fields that only the store needs.
_OF_STORE = frozenset({"cell", "job", "parts", "schema", "samples"})
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
    screen = first_screen(records, header, most_groups=_MOST_GROUPS, known=known)
    first, *others = screen.verdict
    lead = case_table(screen.groups) if screen.groups.groups else screen.medians
    return PageContent(
        title=f"Attention: suite {header.suite}",
        subtitle=", ".join(
            word for word in (_machine(header), count(header.threads, "thread"), header.started) if word
        ),
        verdict=first,
        tone=_TONES[screen.outcome],
        findings=(*others, *([screen.trust] if screen.trust else [])),
        steps=tuple(PageStep(sentence=step.sentence, command=step.command) for step in screen.steps),
        sections=tuple(section for section in _sections(records, header, charts, lead) if section.blocks),
        data=page_data(records, RECORDS_FILE),
    )


def _machine(header: RunHeader) -> str:
    return header.environment.get("cpu", "")


def _sections(
    records: Sequence[Record], header: RunHeader, charts: Sequence[PageChart], lead: Table | None
) -> list[PageSection]:
    sentences = {section.title: section.sentences for section in finding_sections(records)}
    tables = {table.title: table for table in all_tables(records, header.ceilings)}
    ratios = [chart for chart in charts if chart.name == ChartKind.RATIOS]
    saturation = [chart for chart in charts if is_saturation_chart(chart.name)]
    others = [chart for chart in charts if chart not in (*ratios, *saturation)]

    def taken(*titles: str, folded: bool = False) -> list[PageTable]:
        found = [tables.pop(title) for title in titles if title in tables]
        return [page_table(table, is_folded=folded) for table in found]

    def words(title: str) -> list[PageText]:
        found = sentences.get(title, ())
        return [PageText(lines=tuple(found), title=f"{title} in words")] if found else []

    troubles = taken("Not ok", "Where the error begins")
    faster: list[PageBlock] = [
        *ratios,
        *([page_table(lead)] if lead is not None else []),
        *words(TIMES),
        *taken(TIMING_TITLE),
    ]
    costs: list[PageBlock] = [*others, *taken(COST_TITLE, WORK_TITLE, folded=True)]
    scale: list[PageBlock] = [*_claims(records), *saturation, *taken(SATURATION_TITLE, PREDICTION_TITLE, folded=True)]
    agreement: list[PageBlock] = [
        *agreement_blocks(records, usual_factors(records)),
        *words(NUMBERS),
        *taken("Agreement with the float64 oracle", folded=True),
    ]
    rest: list[PageBlock] = [*words(EXPORTS), *words(WARNINGS), *map(page_table, tables.values())]
    return [
        PageSection(anchor="troubles", title="What is not ok", short="Not ok", blocks=tuple(troubles)),
        PageSection(anchor="ratios", title="Faster or slower", short="Faster or slower", blocks=tuple(faster)),
        PageSection(anchor="agreement", title="Are the numbers right", short="Agreement", blocks=tuple(agreement)),
        PageSection(anchor="time", title="Time, size and the roof", short="Time and roof", blocks=tuple(costs)),
        PageSection(anchor="scale", title="What dividing by sqrt(d_k) does", short="Scale", blocks=tuple(scale)),
        PageSection(
            anchor="exports-and-notes", title="Exports, conformance and notes", short="Exports", blocks=tuple(rest)
        ),
        _provenance(header),
    ]


def _claims(records: Sequence[Record]) -> list[PageBlock]:
    cells = saturation_records(records)
    return [PageText(lines=tuple(saturation_findings(cells)), title="All claims in words")] if cells else []


def _provenance(header: RunHeader) -> PageSection:
    table = Table(
        title="Environment",
        heading="",
        columns=(Column(head="what"), Column(head="value")),
        sections=(Section(heading="", rows=tuple(environment_rows(header))),),
    )
    blocks: list[PageBlock] = [page_table(table)]
    if header.command:
        blocks.append(PageText(lines=(header.command,), is_code=True))
    return PageSection(
        anchor="provenance", title="Environment and how to repeat", short="Environment", blocks=tuple(blocks)
    )


def page_table(table: Table, *, is_folded: bool = False) -> PageTable:
    """A table of the report; a long one is cut, and the page says so."""
    left, sections = _MOST_ROWS, []
    for section in table.sections:
        rows = section.rows[:left]
        left -= len(rows)
        if rows:
            sections.append(Section(heading=section.heading, rows=rows))
    cut = Table(
        title=table.title,
        heading=table.heading,
        columns=table.columns,
        sections=tuple(sections),
        note=table.note,
        footnotes=table.footnotes,
    )
    return PageTable(table=cut, anchor=_anchor(table.title), is_folded=is_folded, total=table.rows)


def _anchor(title: str) -> str:
    return "table-" + "".join(one if one.isalnum() else "-" for one in title.lower())


def page_data(records: Sequence[Record], source: str) -> PageData:
    """The records that the page contains: those that are not ok first, then in order, up to a size."""
    ordered = sorted(records, key=lambda record: outcome_of(record) is Outcome.OK)[:_MOST_RECORDS]
    rows: list[Mapping[str, Any]] = []
    left = _MOST_BYTES
    for record in ordered:
        row = _plain(record)
        left -= len(msgspec.json.encode(row))
        if left < 0:
            break
        rows.append(row)
    return PageData(rows=tuple(rows), total=len(records), source=source)


def _plain(record: Record) -> dict[str, Any]:
    """A record without what is empty and without what only the store needs."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {
        name: value for name, value in fields.items() if name not in _OF_STORE and value not in (None, "", [], {}, ())
    }
