"""The report on a terminal or a pipe: findings first, then the tables, then the environment.

Colour is used only if rich finds a terminal that supports it (NO_COLOR is respected). Colours add no information.
"""

from collections.abc import Sequence

from rich.console import Console

from sdpa_onnx.core.records.records import Outcome, Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.run.environment import environment_rows
from sdpa_onnx.report.run.findings import findings
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.text.layout import TextLine, Tone, bullet, paragraph, table_lines
from sdpa_onnx.report.text.print_lines import print_line, print_lines
from sdpa_onnx.report.text.table import Table
from sdpa_onnx.report.text.tally import outcome_of
from sdpa_onnx.report.timing.cost_tables import COST_TITLE, WORK_TITLE
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["print_findings_and_tables", "print_report", "print_tables"]

# Greatest number of cases for which the tables of cost and work are printed; summary.md always has them.
_MOST_DETAILED_CASES = 4


def print_report(
    records: Sequence[Record], header: RunHeader, console: Console, *, known: SortedFindings | None = None
) -> None:
    """Print the whole report."""
    _print_findings(records, header, console, known)
    print_line(console, TextLine(text="", tone=Tone.ROW))
    shown = [table for table in all_tables(records, header.ceilings) if not _is_left_to_summary(table)]
    _print_tables(shown, console)
    _print_environment(header, console)


def print_tables(records: Sequence[Record], console: Console) -> None:
    """Print only the tables, for a command that is not a whole run."""
    _print_tables(all_tables(records), console)


def _is_left_to_summary(table: Table) -> bool:
    """Whether a table of details is too long for the terminal, where it would push the others off the screen."""
    return table.title in (COST_TITLE, WORK_TITLE) and len(table.sections) > _MOST_DETAILED_CASES


def _print_tables(tables: Sequence[Table], console: Console) -> None:
    for number, table in enumerate(tables):
        if number:
            print_line(console, TextLine(text="", tone=Tone.ROW))
        for line in table_lines(table, console.width):
            print_line(console, line)


def print_findings_and_tables(sentences: Sequence[str], tables: Sequence[Table], console: Console) -> None:
    """Print sentences, the first as a paragraph and the others as a list, then tables."""
    first, *others = sentences
    lines = [*paragraph(first, console.width), *(text for one in others for text in bullet(one, console.width))]
    print_lines((TextLine(text=text, tone=Tone.ROW) for text in lines), console)
    for table in tables:
        print_lines([TextLine(text="", tone=Tone.ROW), *table_lines(table, console.width)], console)


def _print_findings(
    records: Sequence[Record], header: RunHeader, console: Console, known: SortedFindings | None
) -> None:
    first, *others = findings(records, header, known=known)
    for text in paragraph(first, console.width):
        print_line(console, TextLine(text=text, tone=Tone.ROW), style=_first_style(records, header))
    for sentence in others:
        for text in bullet(sentence, console.width):
            print_line(console, TextLine(text=text, tone=Tone.ROW))


def _first_style(records: Sequence[Record], header: RunHeader) -> str:
    """Red for a disagreement or a failure, yellow if anything is missing, else green."""
    outcomes = {outcome_of(record) for record in records}
    if outcomes & {Outcome.DISAGREES, Outcome.FAILED}:
        return "bold red"
    if not header.is_finished or outcomes != {Outcome.OK}:
        return "bold yellow"
    return "bold green"


def _print_environment(header: RunHeader, console: Console) -> None:
    print_line(console, TextLine(text="", tone=Tone.ROW))
    print_line(console, TextLine(text="Run", tone=Tone.TITLE))
    for name, value in environment_rows(header):
        for text in paragraph(f"{name}: {value}", console.width, hanging="  "):
            print_line(console, TextLine(text=text, tone=Tone.NOTE))
