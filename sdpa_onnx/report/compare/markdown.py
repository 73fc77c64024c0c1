"""A comparison as Markdown, for a pull request comment and a job summary; at most 60 kB.

No clock and no file is read: the same rows give the same bytes. Names are escaped and cannot become markup.
"""

from collections.abc import Sequence

from sdpa_onnx.report.compare.gate_report import (
    GateReport,
    alarms,
    changed_table,
    evidence_lines,
    headline,
    reached,
    summary,
    tally_table,
)
from sdpa_onnx.report.text.markdown_parts import code_span, fenced, inert, table_lines
from sdpa_onnx.report.text.table import Column

__all__ = ["MOST_BYTES", "render_gates"]

# GitHub refuses a comment above 65536 characters; the difference is left for text that a workflow adds.
MOST_BYTES = 60_000
_MOST_ROWS = 40
_MOST_EVIDENCE = 160
_FEWEST = 5
_NO_BREAK = "\N{NO-BREAK SPACE}"
_UNBROKEN = ("verdict", "BASE", "HEAD", "ratio")


def render_gates(report: GateReport) -> str:
    """Render a comparison; if it is too long, details are cut first."""
    rows, most, evidence = _MOST_ROWS, _MOST_EVIDENCE, evidence_lines(report)
    while True:
        text = _rendered(report, rows, evidence, most)
        if len(text.encode()) <= MOST_BYTES or (rows <= _FEWEST and not most):
            return text
        rows, most = rows if most > _MOST_ROWS else max(rows // 2, _FEWEST), most // 2


def _rendered(report: GateReport, most_rows: int, evidence: Sequence[tuple[str, str]], most: int) -> str:
    table = changed_table(report, most=most_rows)
    mark = "\N{CROSS MARK}" if report.failing else "\N{WARNING SIGN}\N{VARIATION SELECTOR-16}" if alarms(report) else ""
    how = f"{report.how} {reached(report)}".rstrip()
    mark = mark or "\N{WHITE HEAVY CHECK MARK}"
    blocks = [
        f"## {mark} Attention: {headline(report)}",
        f"**{inert(summary(report))}**",
        *(f"**{inert(line)}**" for line in alarms(report)),
        f"BASE {code_span(report.base)}, HEAD {code_span(report.head)}. {inert(how)}",
        *([] if table is None else [table_lines(table, cell=_cell)]),
        *_evidence(evidence, most),
        _folded(f"All {len(report.rows)} checks", table_lines(tally_table(report), cell=_cell)),
        _folded("How to repeat it", fenced(report.command)),
    ]
    return "\n\n".join(blocks) + "\n"


def _evidence(lines: Sequence[tuple[str, str]], most: int) -> list[str]:
    if not lines:
        return []
    shown = [f"- **{inert(label)}**: {inert(text)}" for label, text in lines[:most]]
    left = len(lines) - len(shown)
    return [_folded("Evidence", "\n".join([*shown, *([f"- {left} more are not shown."] if left else [])]))]


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _cell(text: str, column: Column) -> str:
    """A cell: a failing verdict is bold, and figures are not broken across lines."""
    if column.head == "verdict" and text == "regression":
        return f"**{text}**"
    return inert(text).replace(" ", _NO_BREAK) if column.head in _UNBROKEN else inert(text)
