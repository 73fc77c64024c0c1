"""The first screen of a report on a terminal or a pipe; everything else is in the report itself.

Colour is used only if rich finds a terminal that supports it (NO_COLOR is respected). Colours add no information.
"""

from collections.abc import Sequence

from rich.console import Console

from sdpa_onnx.core.records.records import Outcome, Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.run.first_screen import FirstScreen, sized_screen
from sdpa_onnx.report.run.next_steps import NextStep
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.text.layout import TextLine, Tone, bullet, paragraph, table_lines
from sdpa_onnx.report.text.print_lines import print_line, print_lines
from sdpa_onnx.report.text.table import Table
from sdpa_onnx.report.timing.case_table import case_table
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["print_findings_and_tables", "print_report", "print_tables", "screen_lines"]

# The first screen fits a terminal of 80 by 25; on a narrower one it may have as many characters in more lines.
_MOST_LINES, _USUAL_WIDTH = 25, 80
# Groups of cases in the table: as many as fit, but not fewer than these.
_MOST_GROUPS, _LEAST_GROUPS = 12, 3

_BLANK = TextLine(text="", tone=Tone.ROW)


def print_report(
    records: Sequence[Record],
    header: RunHeader,
    console: Console,
    *,
    report: str = "",
    folder: str = "",
    known: SortedFindings | None = None,
) -> None:
    """Print the first screen of a run.

    Args:
        report: Path of the report that has everything else; "" if there is none.
        folder: The run folder, for commands; "" if unknown.
        known: The records sorted by the file of known findings; None without such a file.
    """
    ending = [f"Report: {report}"] if report else []
    room = int(_MOST_LINES * max(_USUAL_WIDTH / console.width, 1.0)) - len(ending)
    at_most = sized_screen(records, header, known=known, folder=folder)
    screen = at_most(_MOST_GROUPS)
    for fewer in range(_MOST_GROUPS - 1, _LEAST_GROUPS - 1, -1):
        if _height(screen_lines(screen, console.width), console.width) <= room:
            break
        screen = at_most(fewer)
    first, *others = screen_lines(screen, console.width)
    print_line(console, first, style=_style(screen))
    print_lines([*others, *_rows(ending)], console)


def _height(lines: Sequence[TextLine], width: int) -> int:
    """Lines on the screen: a command that is wider than the screen takes several."""
    return sum(max(1, -(-len(line.text) // width)) for line in lines)


def screen_lines(screen: FirstScreen, width: int) -> list[TextLine]:
    """Lay out the first screen: verdict, table, next steps, trust."""
    lines = [*_rows(paragraph(screen.verdict[0], width))]
    for sentence in screen.verdict[1:]:
        lines += _rows(bullet(sentence, width))
    table = case_table(screen.groups, width) if screen.groups.groups else screen.medians
    if table is not None:
        lines += [_BLANK, *table_lines(table, width)]
    if screen.steps:
        lines += [_BLANK, *(line for step in screen.steps for line in _step_lines(step, width))]
    return [*lines, *_rows(paragraph(screen.trust, width))] if screen.trust else lines


def _rows(texts: Sequence[str]) -> list[TextLine]:
    return [TextLine(text=text, tone=Tone.ROW) for text in texts]


def _step_lines(step: NextStep, width: int) -> list[TextLine]:
    """The sentence and the command, which is never broken, so that it can be copied; on one line if that fits."""
    if not step.command:
        return _rows(paragraph(f"Next: {step.sentence}.", width, hanging="  "))
    if len(both := f"Next: {step.sentence}: {step.command}") <= width:
        return _rows([both])
    return [
        *_rows(paragraph(f"Next: {step.sentence}:", width, hanging="  ")),
        TextLine(text=f"  {step.command}", tone=Tone.SECTION),
    ]


def print_tables(records: Sequence[Record], console: Console) -> None:
    """Print only the tables, for a command that is not a whole run."""
    for number, table in enumerate(all_tables(records)):
        print_lines([*([_BLANK] if number else []), *table_lines(table, console.width)], console)


def print_findings_and_tables(sentences: Sequence[str], tables: Sequence[Table], console: Console) -> None:
    """Print sentences, the first as a paragraph and the others as a list, then tables."""
    first, *others = sentences
    lines = [*paragraph(first, console.width), *(text for one in others for text in bullet(one, console.width))]
    print_lines(_rows(lines), console)
    for table in tables:
        print_lines([_BLANK, *table_lines(table, console.width)], console)


def _style(screen: FirstScreen) -> str:
    """Red for a disagreement or a failure, yellow if anything is missing, else green."""
    if screen.outcome in (Outcome.DISAGREES, Outcome.FAILED):
        return "bold red"
    return "bold green" if screen.outcome is Outcome.OK else "bold yellow"
