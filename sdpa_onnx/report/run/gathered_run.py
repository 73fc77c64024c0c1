"""What every form of a run's report shows, gathered once: first screen, sentences and tables. Data only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.records import Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.run.findings import finding_sections
from sdpa_onnx.report.run.first_screen import FirstScreen, first_screen
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.text.table import Table
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["GatheredRun", "gather_run"]

# Groups of timed cases in the first table; more than on a terminal, because a page scrolls.
_MOST_GROUPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredRun:
    """The report of a run without its form.

    Args:
        screen: What a reader sees first.
        sentences: The other findings by the title of their section.
        tables: Every table that has a row.
    """

    records: Sequence[Record]
    header: RunHeader
    screen: FirstScreen
    sentences: Mapping[str, tuple[str, ...]]
    tables: tuple[Table, ...]


def gather_run(records: Sequence[Record], header: RunHeader, *, known: SortedFindings | None = None) -> GatheredRun:
    """Gather the report of a run.

    Args:
        known: The records sorted by the file of known findings; None without such a file.
    """
    return GatheredRun(
        records=records,
        header=header,
        screen=first_screen(records, header, most_groups=_MOST_GROUPS, known=known),
        sentences={section.title: section.sentences for section in finding_sections(records)},
        tables=tuple(all_tables(records, header.ceilings)),
    )
