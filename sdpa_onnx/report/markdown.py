"""summary.md: the report as Markdown; the same records and header give the same bytes.

Reads no clock and no file; charts are referred to by relative path and drawn elsewhere.
"""

from collections.abc import Iterable, Sequence

from sdpa_onnx.core.header import RunHeader
from sdpa_onnx.core.records import Record, SaturationRecord
from sdpa_onnx.core.saturation_claims import claims
from sdpa_onnx.report.chart_words import chart_title, how_to_read, is_saturation_chart
from sdpa_onnx.report.environment import environment_rows
from sdpa_onnx.report.findings import findings
from sdpa_onnx.report.saturation_findings import saturation_records, with_deviation
from sdpa_onnx.report.saturation_table import PREDICTION_TITLE, SATURATION_TITLE
from sdpa_onnx.report.table import Table
from sdpa_onnx.report.tables import all_tables
from sdpa_onnx.workflows.expected import Sorted

__all__ = ["CHART_FOLDER", "render_summary"]

CHART_FOLDER = "charts"

# The tables that stand before the charts; the others after.
_BEFORE_CHARTS = ("Not ok", "Time of a call")
_OF_SATURATION = (SATURATION_TITLE, PREDICTION_TITLE)


def render_summary(
    records: Sequence[Record], header: RunHeader, charts: Iterable[str], *, known: Sorted | None = None
) -> str:
    """Write the summary.

    Args:
        charts: Names of the charts that lie in `charts/` beside it.
        known: The records beside the known findings, if there is a file of them.
    """
    tables = all_tables(records)
    names = list(charts)
    elsewhere = (*_BEFORE_CHARTS, *_OF_SATURATION)
    blocks = [
        f"# Attention: suite {_escaped(header.suite)}, {_escaped(header.started)}",
        _findings(findings(records, header, known=known)),
        *(_table(table) for table in tables if table.title in _BEFORE_CHARTS),
        *_charts([name for name in names if not is_saturation_chart(name)]),
        *_saturation(
            saturation_records(records),
            [name for name in names if is_saturation_chart(name)],
            [table for table in tables if table.title in _OF_SATURATION],
        ),
        *(_table(table) for table in tables if table.title not in elsewhere),
        _environment(header),
        _repeat(header),
    ]
    return "\n\n".join(blocks) + "\n"


def _findings(lines: Sequence[str]) -> str:
    first, *others = [_escaped(line) for line in lines]
    return "\n".join([f"**{first}**", *([""] if others else []), *(f"- {line}" for line in others)])


def _saturation(cells: Sequence[SaturationRecord], names: Sequence[str], tables: Sequence[Table]) -> list[str]:
    """All that was found on the scale, in one section: claims, charts, tables."""
    if not cells:
        return []
    said = with_deviation(cells, claims(cells))
    return [
        "## What dividing by sqrt(d_k) does",
        "\n".join(f"- {_escaped(line)}" for line in said),
        *(_chart(name) for name in names),
        *(_table(table, level=3) for table in tables),
    ]


def _table(table: Table, *, level: int = 2) -> str:
    heads = ([table.heading] if table.heading else []) + [column.head for column in table.columns]
    rules = (["---"] if table.heading else []) + ["---:" if column.is_number else "---" for column in table.columns]
    lines = [_row([_escaped(head) for head in heads]), _row(rules)]
    for section in table.sections:
        for index, row in enumerate(section.rows):
            heading = [section.heading if index == 0 else ""] if table.heading else []
            lines.append(_row([_escaped(cell) for cell in (*heading, *row)]))
    note = ["", _escaped(table.note)] if table.note else []
    footnotes = [f"- [{number}] {_escaped(footnote)}" for number, footnote in enumerate(table.footnotes, 1)]
    return "\n".join([f"{'#' * level} {table.title}", "", *lines, *note, *([""] if footnotes else []), *footnotes])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _charts(names: Sequence[str]) -> list[str]:
    return ["## Charts", *(_chart(name) for name in names)] if names else []


def _chart(name: str) -> str:
    return f"![{_escaped(chart_title(name))}]({CHART_FOLDER}/{name}.svg)\n\n{_escaped(how_to_read(name))}"


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
