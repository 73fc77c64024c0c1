"""The report on a terminal or a pipe: findings first, then the tables, then the machine.

Colour only where rich finds a terminal that takes it (NO_COLOR is honoured); the
words carry everything that the colours say.
"""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from sdpa_onnx.core.header import RunHeader
from sdpa_onnx.core.records import Outcome, Record
from sdpa_onnx.report.cost_tables import COST_TITLE, WORK_TITLE
from sdpa_onnx.report.environment import environment_rows
from sdpa_onnx.report.findings import findings
from sdpa_onnx.report.layout import Line, Tone, bullet, paragraph, table_lines
from sdpa_onnx.report.table import Table
from sdpa_onnx.report.tables import all_tables
from sdpa_onnx.report.tally import outcome_of
from sdpa_onnx.report.visible import visible
from sdpa_onnx.workflows.expected import Sorted

__all__ = ["print_findings_and_tables", "print_lines", "print_report", "print_tables"]

# Cases up to which the tables of what a call costs and of its rates are printed; summary.md has them always.
_MOST_DETAILED_CASES = 4

_STYLES = {Tone.TITLE: "bold", Tone.HEAD: "dim", Tone.SECTION: "cyan", Tone.ROW: "", Tone.NOTE: "dim"}


def print_report(
    records: Sequence[Record], header: RunHeader, console: Console, *, known: Sorted | None = None
) -> None:
    """Print the whole report."""
    _print_findings(records, header, console, known)
    _print(console, Line(text="", tone=Tone.ROW))
    shown = [table for table in all_tables(records, header.ceilings) if not _is_left_to_summary(table)]
    _print_tables(shown, console)
    _print_environment(header, console)


def print_tables(records: Sequence[Record], console: Console) -> None:
    """Print the tables alone, for a command that is not a whole run."""
    _print_tables(all_tables(records), console)


def _is_left_to_summary(table: Table) -> bool:
    """Whether a table of details is so long that it would push the others off the screen."""
    return table.title in (COST_TITLE, WORK_TITLE) and len(table.sections) > _MOST_DETAILED_CASES


def _print_tables(tables: Sequence[Table], console: Console) -> None:
    for number, table in enumerate(tables):
        if number:
            _print(console, Line(text="", tone=Tone.ROW))
        for line in table_lines(table, console.width):
            _print(console, line)


def print_findings_and_tables(sentences: Sequence[str], tables: Sequence[Table], console: Console) -> None:
    """Print sentences, the first as it is and the others as a list, and tables below them."""
    first, *others = sentences
    lines = [*paragraph(first, console.width), *(text for one in others for text in bullet(one, console.width))]
    print_lines((Line(text=text, tone=Tone.ROW) for text in lines), console)
    for table in tables:
        print_lines([Line(text="", tone=Tone.ROW), *table_lines(table, console.width)], console)


def print_lines(lines: Iterable[Line], console: Console) -> None:
    """Print lines that somebody else laid out."""
    for line in lines:
        _print(console, line)


def _print_findings(records: Sequence[Record], header: RunHeader, console: Console, known: Sorted | None) -> None:
    first, *others = findings(records, header, known=known)
    for text in paragraph(first, console.width):
        _print(console, Line(text=text, tone=Tone.ROW), style=_first_style(records, header))
    for sentence in others:
        for text in bullet(sentence, console.width):
            _print(console, Line(text=text, tone=Tone.ROW))


def _first_style(records: Sequence[Record], header: RunHeader) -> str:
    """Red for a disagreement or failure, yellow for a gap, green for none."""
    outcomes = {outcome_of(record) for record in records}
    if outcomes & {Outcome.DISAGREES, Outcome.FAILED}:
        return "bold red"
    if not header.is_finished or outcomes != {Outcome.OK}:
        return "bold yellow"
    return "bold green"


def _print_environment(header: RunHeader, console: Console) -> None:
    _print(console, Line(text="", tone=Tone.ROW))
    _print(console, Line(text="Run", tone=Tone.TITLE))
    for name, value in environment_rows(header):
        for text in paragraph(f"{name}: {value}", console.width, hanging="  "):
            _print(console, Line(text=text, tone=Tone.NOTE))


def _print(console: Console, line: Line, *, style: str | None = None) -> None:
    """Print one line as it is: no markup, no highlighting, nothing cut at the width."""
    text = Text(_printable(visible(line.text), console.encoding), style=_STYLES[line.tone] if style is None else style)
    console.print(text, soft_wrap=True, highlight=False)


def _printable(text: str, encoding: str) -> str:
    """Replace what the output's encoding lacks; micro first, for its unit must survive."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.replace("µ", "u").encode("ascii", "replace").decode("ascii")
    return text
