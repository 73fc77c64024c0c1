"""Parts of every Markdown report: tables, and text that cannot become markup."""

import re
from collections.abc import Callable

from sdpa_onnx.report.text.escape_control import escape_control
from sdpa_onnx.report.text.table import Column, Table

__all__ = ["code_span", "escaped", "fenced", "inert", "table_block", "table_lines"]

# More characters that could become markup on a public page: links, emphasis, mentions, references to issues, formulas.
_MARKS = re.compile(r"([\[\]_~])")
_MENTION = re.compile(r"([@#])(?=\w)")
# Text that GitHub turns into a link without brackets. Source: GitHub Flavored Markdown, "Autolinks (extension)".
_ADDRESS = re.compile(r"(:(?=//)|www(?=\.))", re.IGNORECASE)
_ZERO_WIDTH = "\N{ZERO WIDTH SPACE}"


def table_block(table: Table, *, level: int = 2, safe: Callable[[str], str] | None = None) -> str:
    """A table under its title.

    Args:
        level: Level of the title.
        safe: The function that escapes markup; None = `escaped`.
    """
    safe = safe or escaped
    lines = table_lines(table, cell=lambda text, _: safe(text))
    footnotes = [f"- [{number}] {safe(footnote)}" for number, footnote in enumerate(table.footnotes, 1)]
    return "\n".join([f"{'#' * level} {safe(table.title)}", "", lines, *([""] if footnotes else []), *footnotes])


def table_lines(table: Table, *, cell: Callable[[str, Column], str]) -> str:
    """A table with its note; the heading of a section is in its first row only.

    Args:
        cell: Escapes the text of a head, a cell or the note.
    """
    columns = (*([Column(head=table.heading)] if table.heading else ()), *table.columns)
    rows = [
        (*((section.heading if index == 0 else "",) if table.heading else ()), *row)
        for section in table.sections
        for index, row in enumerate(section.rows)
    ]
    lines = [
        [cell(column.head, Column(head="")) for column in columns],
        ["---:" if column.is_number else "---" for column in columns],
        *([cell(text, column) for text, column in zip(row, columns, strict=True)] for row in rows),
    ]
    note = ["", cell(table.note, Column(head=""))] if table.note else []
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *note])


def escaped(text: str) -> str:
    """Escape Markdown and HTML."""
    line = escape_control(" ".join(text.split()))
    for mark, safe in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("`", "\\`")):
        line = line.replace(mark, safe)
    return line


def inert(text: str) -> str:
    """Like `escaped`, and no link, mention, formula or emphasis either: for public pages with untrusted names."""
    line = _MENTION.sub(rf"\1{_ZERO_WIDTH}", _MARKS.sub(r"\\\1", escaped(text)))
    # A backslash before a dollar sign does not prevent a formula everywhere on GitHub.
    return _ADDRESS.sub(rf"\1{_ZERO_WIDTH}", line).replace("$", "&#36;")


def code_span(text: str) -> str:
    """Text in a code span; backticks in the text cannot end it."""
    line = escape_control(" ".join(text.split()))
    ticks = "`" * (_longest(line) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def fenced(text: str) -> str:
    """A command as a code block; backticks in the command cannot end it."""
    fence = "`" * max(3, _longest(text) + 1)
    return f"{fence}sh\n{escape_control(text)}\n{fence}"


def _longest(text: str) -> int:
    """Length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
