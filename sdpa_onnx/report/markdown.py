"""summary.md: the report as Markdown; the same records and header give the same bytes.

Reads no clock and no file; charts are referred to by relative path and drawn elsewhere.
"""

from collections.abc import Iterable, Sequence

from sdpa_onnx.core.header import RunHeader
from sdpa_onnx.core.records import Record
from sdpa_onnx.report.chart_words import chart_title, how_to_read
from sdpa_onnx.report.environment import environment_rows
from sdpa_onnx.report.findings import findings
from sdpa_onnx.report.tables import Table, all_tables

__all__ = ["CHART_FOLDER", "render_summary"]

CHART_FOLDER = "charts"

# The tables that stand before the charts; the others after.
_BEFORE_CHARTS = ("Not ok", "Time of a call")


def render_summary(records: Sequence[Record], header: RunHeader, charts: Iterable[str]) -> str:
    """Write the summary.

    Args:
        charts: Names of the charts that lie in `charts/` beside it.
    """
    tables = all_tables(records)
    blocks = [
        f"# Attention: suite {_escaped(header.suite)}, {_escaped(header.started)}",
        _findings(findings(records, header)),
        *(_table(table) for table in tables if table.title in _BEFORE_CHARTS),
        *_charts(charts),
        *(_table(table) for table in tables if table.title not in _BEFORE_CHARTS),
        _environment(header),
        _repeat(header),
    ]
    return "\n\n".join(blocks) + "\n"


def _findings(lines: Sequence[str]) -> str:
    first, *others = [_escaped(line) for line in lines]
    return "\n".join([f"**{first}**", *([""] if others else []), *(f"- {line}" for line in others)])


def _table(table: Table) -> str:
    heads = ([table.heading] if table.heading else []) + [column.head for column in table.columns]
    rules = (["---"] if table.heading else []) + ["---:" if column.is_number else "---" for column in table.columns]
    lines = [_row(heads), _row(rules)]
    for section in table.sections:
        for index, row in enumerate(section.rows):
            heading = [section.heading if index == 0 else ""] if table.heading else []
            lines.append(_row([_escaped(cell) for cell in (*heading, *row)]))
    note = ["", _escaped(table.note)] if table.note else []
    return "\n".join([f"## {table.title}", "", *lines, *note])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _charts(names: Iterable[str]) -> list[str]:
    blocks = [
        f"![{_escaped(chart_title(name))}]({CHART_FOLDER}/{name}.svg)\n\n{_escaped(how_to_read(name))}"
        for name in names
    ]
    return ["## Charts", *blocks] if blocks else []


def _environment(header: RunHeader) -> str:
    rows = [_row([_escaped(name), _escaped(value)]) for name, value in environment_rows(header)]
    return "\n".join(["## Environment", "", _row(["what", "value"]), _row(["---", "---"]), *rows])


def _repeat(header: RunHeader) -> str:
    return f"## How to repeat\n\n```sh\n{header.command}\n```"


def _escaped(text: str) -> str:
    """Keep Markdown and HTML out of a reason or a name."""
    line = " ".join(text.split())
    for mark, safe in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("`", "\\`")):
        line = line.replace(mark, safe)
    return line
