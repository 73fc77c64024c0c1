"""Parts of every Markdown report: tables, and text that cannot become markup."""

import re
from collections.abc import Callable, Sequence

from sdpa_onnx.report.text.escape_control import escape_control
from sdpa_onnx.report.text.table import Table

__all__ = ["code_span", "escaped", "fenced", "inert", "table_block", "table_row"]

# More characters that could become markup on a public page: links, emphasis, mentions, references to issues, formulas.
_MARKS = re.compile(r"([\[\]_~])")
_MENTION = re.compile(r"([@#])(?=\w)")
# Text that GitHub turns into a link without brackets. Source: GitHub Flavored Markdown, "Autolinks (extension)".
_ADDRESS = re.compile(r"(:(?=//)|www(?=\.))", re.IGNORECASE)
_ZERO_WIDTH = "\N{ZERO WIDTH SPACE}"


def table_block(table: Table, *, level: int = 2, safe: Callable[[str], str] | None = None) -> str:
    """A table under its title; the heading of a section is in its first row only.

    Args:
        level: Level of the title.
        safe: The function that escapes markup; None = `escaped`.
    """
    safe = safe or escaped
    heads = ([table.heading] if table.heading else []) + [column.head for column in table.columns]
    rules = (["---"] if table.heading else []) + ["---:" if column.is_number else "---" for column in table.columns]
    lines = [table_row([safe(head) for head in heads]), table_row(rules)]
    for section in table.sections:
        for index, row in enumerate(section.rows):
            heading = [section.heading if index == 0 else ""] if table.heading else []
            lines.append(table_row([safe(cell) for cell in (*heading, *row)]))
    note = ["", safe(table.note)] if table.note else []
    footnotes = [f"- [{number}] {safe(footnote)}" for number, footnote in enumerate(table.footnotes, 1)]
    return "\n".join(
        [f"{'#' * level} {safe(table.title)}", "", *lines, *note, *([""] if footnotes else []), *footnotes]
    )


def table_row(cells: Sequence[str]) -> str:
    """One line of a table; the cells must be escaped."""
    return f"| {' | '.join(cells)} |"


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
