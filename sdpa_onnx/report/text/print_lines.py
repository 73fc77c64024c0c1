"""Lines of text on a terminal or a pipe: colour by tone, nothing cut, no control characters, any encoding."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from sdpa_onnx.report.text.escape_control import visible
from sdpa_onnx.report.text.layout import TextLine, Tone

__all__ = ["print_line", "print_lines"]

_STYLES = {Tone.TITLE: "bold", Tone.HEAD: "dim", Tone.SECTION: "cyan", Tone.ROW: "", Tone.NOTE: "dim"}


def print_lines(lines: Iterable[TextLine], console: Console) -> None:
    """Print lines that are laid out already."""
    for line in lines:
        print_line(console, line)


def print_line(console: Console, line: TextLine, *, style: str | None = None) -> None:
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
