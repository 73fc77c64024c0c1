"""A comparison on a terminal or a pipe: the verdict first, then what changed, then the evidence."""

from collections.abc import Iterator

from rich.console import Console

from sdpa_onnx.report.compare.gate_report import GateReport, alarms, changed_table, evidence_lines, reached, summary
from sdpa_onnx.report.text.layout import TextLine, Tone, bullet, paragraph, table_lines
from sdpa_onnx.report.text.print_lines import print_lines

__all__ = ["gate_lines", "print_gates"]

# Greatest number of rows; the Markdown and the JSON have more.
_MOST_ROWS = 25


def print_gates(report: GateReport, console: Console) -> None:
    """Print a comparison."""
    print_lines(gate_lines(report, console.width), console)


def gate_lines(report: GateReport, width: int) -> Iterator[TextLine]:
    """A comparison as lines of a given width."""
    for text in paragraph(summary(report), width):
        yield TextLine(text=text, tone=Tone.TITLE)
    for sentence in alarms(report):
        yield from (TextLine(text=text, tone=Tone.TITLE) for text in paragraph(sentence, width))
    about = f"BASE {report.base}, HEAD {report.head}. {report.how} {reached(report)}".rstrip()
    yield from (TextLine(text=text, tone=Tone.NOTE) for text in paragraph(about, width))
    table = changed_table(report, most=_MOST_ROWS)
    if table is None:
        return
    yield TextLine(text="", tone=Tone.ROW)
    yield from table_lines(table, width)
    yield TextLine(text="", tone=Tone.ROW)
    evidence = evidence_lines(report)
    for label, sentence in evidence[:_MOST_ROWS]:
        yield from (TextLine(text=text, tone=Tone.ROW) for text in bullet(f"{label}: {sentence}", width))
    if len(evidence) > _MOST_ROWS:
        yield TextLine(text=f"- {len(evidence) - _MOST_ROWS} more; see --markdown or --json.", tone=Tone.ROW)
