"""Print lines on a terminal or a pipe: coloured by tone, never cut, without control characters, in any encoding."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from sdpa_onnx.report.text.escape_control import escape_control
from sdpa_onnx.report.text.layout import TextLine, Tone

__all__ = ["print_line", "print_lines"]

_STYLES = {Tone.TITLE: "bold", Tone.HEAD: "dim", Tone.SECTION: "cyan", Tone.ROW: "", Tone.NOTE: "dim"}


def print_lines(lines: Iterable[TextLine], console: Console) -> None:
    """Print lines that are already laid out."""
    for line in lines:
        print_line(console, line)


def print_line(console: Console, line: TextLine, *, style: str | None = None) -> None:
    """Print one line unchanged: no markup, no highlighting, not cut at the width."""
    text = Text(
        _printable(escape_control(line.text), console.encoding), style=_STYLES[line.tone] if style is None else style
    )
    console.print(text, soft_wrap=True, highlight=False)


def _printable(text: str, encoding: str) -> str:
    """Replace characters that the encoding of the output lacks; the micro sign becomes u, because units must stay."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.replace("µ", "u").encode("ascii", "replace").decode("ascii")
    return text
