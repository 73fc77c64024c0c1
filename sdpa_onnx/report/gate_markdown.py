"""A comparison as Markdown, for a comment on a pull request and the summary of a job; at most 60 kB.

Reads no clock and no file: the same rows give the same bytes. What a name holds can never become markup.
"""

import re
from collections.abc import Sequence

from sdpa_onnx.report.gate_report import (
    GateReport,
    alarms,
    changed_table,
    evidence_lines,
    headline,
    summary,
    tally_table,
)
from sdpa_onnx.report.markdown_parts import escaped, table_row
from sdpa_onnx.report.table import Column, Table

__all__ = ["MOST_BYTES", "render_gates"]

# GitHub refuses a comment above 65536 characters; the rest is left to whoever puts it together.
MOST_BYTES = 60_000
_MOST_ROWS = 40
_MOST_EVIDENCE = 160
_FEWEST = 5
# What else could become markup: links, emphasis, mentions, references to issues.
_MARKS = re.compile(r"([\[\]_~])")
_MENTION = re.compile(r"([@#])(?=\w)")
_NO_BREAK = "\N{NO-BREAK SPACE}"
_WHOLE = ("word", "BASE", "HEAD", "ratio")
_ZERO_WIDTH = "\N{ZERO WIDTH SPACE}"


def render_gates(report: GateReport) -> str:
    """Write a comparison; details are cut first where it would be too long."""
    rows, most, evidence = _MOST_ROWS, _MOST_EVIDENCE, evidence_lines(report)
    while True:
        text = _rendered(report, rows, evidence, most)
        if len(text.encode()) <= MOST_BYTES or (rows <= _FEWEST and not most):
            return text
        rows, most = rows if most > _MOST_ROWS else max(rows // 2, _FEWEST), most // 2


def _rendered(report: GateReport, most_rows: int, evidence: Sequence[tuple[str, str]], most: int) -> str:
    table = changed_table(report, most=most_rows)
    mark = "\N{CROSS MARK}" if report.failing else "\N{WARNING SIGN}\N{VARIATION SELECTOR-16}" if alarms(report) else ""
    mark = mark or "\N{WHITE HEAVY CHECK MARK}"
    blocks = [
        f"## {mark} Attention: {headline(report)}",
        f"**{_safe(summary(report))}**",
        *(f"**{_safe(line)}**" for line in alarms(report)),
        f"BASE {_code(report.base)}, HEAD {_code(report.head)}. {_safe(report.how)}",
        *([] if table is None else [_table(table)]),
        *_evidence(evidence, most),
        _folded(f"All {len(report.rows)} checks", _table(tally_table(report))),
        _folded("How to repeat it", _fenced(report.command)),
    ]
    return "\n\n".join(blocks) + "\n"


def _evidence(lines: Sequence[tuple[str, str]], most: int) -> list[str]:
    if not lines:
        return []
    told = [f"- **{_safe(label)}**: {_safe(text)}" for label, text in lines[:most]]
    left = len(lines) - len(told)
    return [_folded("Evidence", "\n".join([*told, *([f"- {left} more are not shown."] if left else [])]))]


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _table(table: Table) -> str:
    lines = [
        table_row([_safe(column.head) for column in table.columns]),
        table_row(["---:" if column.is_number else "---" for column in table.columns]),
        *(table_row(list(map(_cell, row, table.columns))) for section in table.sections for row in section.rows),
    ]
    return "\n".join([*lines, *(["", _safe(table.note)] if table.note else [])])


def _cell(text: str, column: Column) -> str:
    """A cell; the word that fails stands out, and figures are not broken."""
    if column.head == "word" and text == "regression":
        return f"**{text}**"
    return _safe(text).replace(" ", _NO_BREAK) if column.head in _WHOLE else _safe(text)


def _safe(text: str) -> str:
    """Text that stays text."""
    return _MENTION.sub(rf"\1{_ZERO_WIDTH}", _MARKS.sub(r"\\\1", escaped(text)))


def _code(text: str) -> str:
    """Text in a code span that its own backticks cannot end."""
    line = " ".join(text.split())
    ticks = "`" * (_longest(line) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def _fenced(text: str) -> str:
    fence = "`" * max(3, _longest(text) + 1)
    return f"{fence}sh\n{text}\n{fence}"


def _longest(text: str) -> int:
    """Length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
