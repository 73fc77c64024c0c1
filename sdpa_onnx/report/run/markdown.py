"""summary.md: the report as Markdown; the same records and header give the same bytes.

It reads no clock and no file. Charts are linked by relative path and drawn by `render`.
"""

from collections.abc import Iterable, Sequence

from sdpa_onnx.core.records.records import Record, SaturationRecord
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.core.saturation.claims import claims
from sdpa_onnx.report.run.environment import environment_rows
from sdpa_onnx.report.run.findings import findings
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.saturation.findings import saturation_records, with_deviation
from sdpa_onnx.report.saturation.tables import PREDICTION_TITLE, SATURATION_TITLE
from sdpa_onnx.report.text.chart_titles import chart_title, how_to_read, is_saturation_chart
from sdpa_onnx.report.text.labels import join_words
from sdpa_onnx.report.text.markdown_parts import escaped, fenced, table_block, table_row
from sdpa_onnx.report.text.svg import CHART_FOLDER
from sdpa_onnx.report.text.table import Table
from sdpa_onnx.report.timing.comparisons import comparisons
from sdpa_onnx.report.timing.tables import TIMING_TITLE
from sdpa_onnx.report.timing.verdict_text import confidences
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["render_summary"]

# The tables before the charts; the others follow the charts.
_BEFORE_CHARTS = ("Not ok", TIMING_TITLE)
_OF_SATURATION = (SATURATION_TITLE, PREDICTION_TITLE)


def render_summary(
    records: Sequence[Record], header: RunHeader, charts: Iterable[str], *, known: SortedFindings | None = None
) -> str:
    """Render the summary.

    Args:
        charts: Names of the charts in the folder `charts/` next to the summary.
        known: The records sorted by the file of known findings; None without such a file.
    """
    tables = all_tables(records, header.ceilings)
    names = list(charts)
    confidence = join_words(confidences(comparisons(records)))
    elsewhere = (*_BEFORE_CHARTS, *_OF_SATURATION)
    blocks = [
        f"# Attention: suite {escaped(header.suite)}, {escaped(header.started)}",
        _findings(findings(records, header, known=known)),
        *(table_block(table) for table in tables if table.title in _BEFORE_CHARTS),
        *_charts([name for name in names if not is_saturation_chart(name)], confidence),
        *_saturation(
            saturation_records(records),
            [name for name in names if is_saturation_chart(name)],
            [table for table in tables if table.title in _OF_SATURATION],
        ),
        *(table_block(table) for table in tables if table.title not in elsewhere),
        _environment(header),
        _repeat(header),
    ]
    return "\n\n".join(blocks) + "\n"


def _findings(lines: Sequence[str]) -> str:
    first, *others = [escaped(line) for line in lines]
    return "\n".join([f"**{first}**", *([""] if others else []), *(f"- {line}" for line in others)])


def _saturation(cells: Sequence[SaturationRecord], names: Sequence[str], tables: Sequence[Table]) -> list[str]:
    """The section on the effect of the scale: claims, charts, tables."""
    if not cells:
        return []
    sentences = with_deviation(cells, claims(cells))
    return [
        "## What dividing by sqrt(d_k) does",
        "\n".join(f"- {escaped(line)}" for line in sentences),
        *(_chart(name) for name in names),
        *(table_block(table, level=3) for table in tables),
    ]


def _charts(names: Sequence[str], confidence: str) -> list[str]:
    return ["## Charts", *(_chart(name, confidence) for name in names)] if names else []


def _chart(name: str, confidence: str = "") -> str:
    reading = how_to_read(name, ratio_confidence=confidence)
    return f"![{escaped(chart_title(name))}]({CHART_FOLDER}/{name}.svg)\n\n{escaped(reading)}"


def _environment(header: RunHeader) -> str:
    rows = [table_row([escaped(name), escaped(value)]) for name, value in environment_rows(header)]
    return "\n".join(["## Environment", "", table_row(["what", "value"]), table_row(["---", "---"]), *rows])


def _repeat(header: RunHeader) -> str:
    return f"## How to repeat\n\n{fenced(header.command)}"
