"""The page of a run: which section holds what, in the order in which a reader asks."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sdpa_onnx.core.records.records import Outcome, Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.core.saturation.claims import claims
from sdpa_onnx.report.page.agreement_matrix import agreement_blocks
from sdpa_onnx.report.page.content import (
    PageBlock,
    PageChart,
    PageContent,
    PageData,
    PageSection,
    PageTable,
    PageText,
    PageTone,
)
from sdpa_onnx.report.run.environment import environment_rows
from sdpa_onnx.report.run.findings import finding_sections
from sdpa_onnx.report.run.first_screen import FirstScreen, first_screen
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.saturation.findings import saturation_records, with_deviation
from sdpa_onnx.report.saturation.tables import PREDICTION_TITLE, SATURATION_TITLE
from sdpa_onnx.report.text.chart_titles import ChartKind, is_saturation_chart
from sdpa_onnx.report.text.labels import usual_factors
from sdpa_onnx.report.text.table import Column, Section, Table
from sdpa_onnx.report.text.tally import outcome_of
from sdpa_onnx.report.timing.cost_tables import COST_TITLE, WORK_TITLE
from sdpa_onnx.report.timing.tables import TIMING_TITLE
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["page_data", "page_table", "run_page"]

# Groups of timed cases in the first table.
_MOST_GROUPS = 12
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
    cpu = header.environment.get("cpu", "")
    return PageContent(
        title=f"Attention: suite {header.suite}",
        subtitle=", ".join(
            word
            for word in (cpu, f"{header.threads} threads" if header.threads > 1 else "1 thread", header.started)
            if word
        ),
        verdict=screen.verdict[0],
        tone=_tone(records, header),
        findings=tuple(_first_findings(screen)),
        more=tuple(line for section in finding_sections(records) for line in section.sentences),
        sections=tuple(section for section in _sections(records, header, charts) if section.blocks),
        data=page_data(records, RECORDS_FILE),
    )


def _first_findings(screen: FirstScreen) -> list[str]:
    """What the first screen says after its first sentence: what else is not ok, what to do next, the timings."""
    steps = [f"{step.sentence}: {step.command}" if step.command else f"{step.sentence}." for step in screen.steps]
    return [*screen.verdict[1:], *steps, *([screen.trust] if screen.trust else [])]


def _tone(records: Sequence[Record], header: RunHeader) -> PageTone:
    """Bad for a disagreement or a failure, doubt if anything is missing, else good."""
    outcomes = {outcome_of(record) for record in records}
    if outcomes & {Outcome.DISAGREES, Outcome.FAILED}:
        return PageTone.BAD
    return PageTone.GOOD if header.is_finished and outcomes == {Outcome.OK} else PageTone.DOUBT


def _sections(records: Sequence[Record], header: RunHeader, charts: Sequence[PageChart]) -> list[PageSection]:
    tables = {table.title: table for table in all_tables(records, header.ceilings)}
    ratios = [chart for chart in charts if chart.name == ChartKind.RATIOS]
    saturation = [chart for chart in charts if is_saturation_chart(chart.name)]
    others = [chart for chart in charts if chart not in (*ratios, *saturation)]

    def taken(*titles: str, folded: bool = False) -> list[PageTable]:
        found = [tables.pop(title) for title in titles if title in tables]
        return [page_table(table, is_folded=folded) for table in found]

    troubles = taken("Not ok", "Where the error begins")
    faster: list[PageBlock] = [*ratios, *taken(TIMING_TITLE)]
    costs: list[PageBlock] = [*others, *taken(COST_TITLE, WORK_TITLE, folded=True)]
    scale: list[PageBlock] = [*_claims(records), *saturation, *taken(SATURATION_TITLE, PREDICTION_TITLE, folded=True)]
    agreement: list[PageBlock] = [
        *agreement_blocks(records, header, usual_factors(records)),
        *taken("Agreement with the float64 oracle", folded=True),
    ]
    rest = [page_table(table) for table in tables.values()]
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
    return [PageText(lines=tuple(with_deviation(cells, claims(cells))), title="All claims in words")] if cells else []


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
