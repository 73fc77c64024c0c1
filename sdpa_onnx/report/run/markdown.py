"""summary.md: the first screen, then everything else under headings; the same records and header give the same bytes.

It reads no clock and no file. Charts are linked by relative path and drawn by `render`.
"""

from collections.abc import Iterable, Mapping, Sequence

from sdpa_onnx.core.records.records import Record, SaturationRecord
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.run.environment import environment_rows
from sdpa_onnx.report.run.findings import EXPORTS, NUMBERS, TIMES, WARNINGS
from sdpa_onnx.report.run.first_screen import FirstScreen
from sdpa_onnx.report.run.gathered_run import GatheredRun, gather_run
from sdpa_onnx.report.saturation.findings import saturation_findings, saturation_records
from sdpa_onnx.report.saturation.tables import PREDICTION_TITLE, SATURATION_TITLE
from sdpa_onnx.report.text.chart_titles import chart_title, how_to_read, is_saturation_chart
from sdpa_onnx.report.text.labels import join_words
from sdpa_onnx.report.text.markdown_parts import code_span, escaped, fenced, table_block
from sdpa_onnx.report.text.svg import CHART_FOLDER
from sdpa_onnx.report.text.table import Table, facts_table
from sdpa_onnx.report.timing.case_table import case_table
from sdpa_onnx.report.timing.comparisons import comparisons
from sdpa_onnx.report.timing.cost_tables import CIRCUMSTANCES_TITLE, COST_TITLE, WORK_TITLE
from sdpa_onnx.report.timing.tables import TIMING_TITLE
from sdpa_onnx.report.timing.verdict_text import confidences
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["render_summary", "summary_of"]

_OF_SATURATION = (SATURATION_TITLE, PREDICTION_TITLE)
# The section of each table; tables that are not listed belong to the numbers.
_SECTIONS = {
    "Exports": EXPORTS,
    "Limits of the axes": EXPORTS,
    "Forms": TIMES,
    **dict.fromkeys((TIMING_TITLE, COST_TITLE, WORK_TITLE, CIRCUMSTANCES_TITLE), TIMES),
    "Warnings": WARNINGS,
}


def render_summary(
    records: Sequence[Record], header: RunHeader, charts: Iterable[str], *, known: SortedFindings | None = None
) -> str:
    """Render the summary.

    Args:
        charts: Names of the charts in the folder `charts/` next to the summary.
        known: The records sorted by the file of known findings; None without such a file.
    """
    return summary_of(gather_run(records, header, known=known), charts)


def summary_of(run: GatheredRun, charts: Iterable[str]) -> str:
    """Render the summary of a gathered run."""
    names, tables, records, header = list(charts), run.tables, run.records, run.header
    drawn = _charts(
        [name for name in names if not is_saturation_chart(name)], join_words(confidences(comparisons(records)))
    )
    blocks = [
        f"# Attention: suite {escaped(header.suite)}, {escaped(header.started)}",
        *_first(run.screen),
        *_sections(run.sentences, [table for table in tables if table.title not in _OF_SATURATION], drawn),
        *_saturation(
            saturation_records(records),
            [name for name in names if is_saturation_chart(name)],
            [table for table in tables if table.title in _OF_SATURATION],
        ),
        table_block(facts_table("Environment", environment_rows(header))),
        _repeat(header),
    ]
    return "\n\n".join(blocks) + "\n"


def _first(screen: FirstScreen) -> list[str]:
    """The first screen: verdict, table, what to do next, how far the timings hold."""
    first, *others = [escaped(line) for line in screen.verdict]
    steps = [
        f"- Next: {escaped(step.sentence)}{f': {code_span(step.command)}' if step.command else '.'}"
        for step in screen.steps
    ]
    table = case_table(screen.groups) if screen.groups.groups else None
    return [
        f"**{first}**",
        *(["\n".join(f"- {line}" for line in others)] if others else []),
        *([] if table is None else [table_block(table)]),
        *(["\n".join(steps)] if steps else []),
        *([escaped(screen.trust)] if screen.trust else []),
    ]


def _sections(sentences: Mapping[str, Sequence[str]], tables: Sequence[Table], charts: Sequence[str]) -> list[str]:
    """Sentences, charts and tables under the heading to which they belong."""
    blocks = []
    for title in (NUMBERS, TIMES, EXPORTS, WARNINGS):
        mine = [table for table in tables if _SECTIONS.get(table.title, NUMBERS) == title]
        drawn = charts if title == TIMES else ()
        listed = "\n".join(f"- {escaped(line)}" for line in sentences.get(title, ()))
        body = [*([listed] if listed else []), *drawn, *(_section_table(table, title) for table in mine)]
        blocks += [f"## {title}", *body] if body else []
    return blocks


def _section_table(table: Table, section: str) -> str:
    """A table below its heading; a title that repeats the heading is left out."""
    block = table_block(table, level=3)
    return block.partition("\n\n")[2] if table.title == section else block


def _saturation(cells: Sequence[SaturationRecord], names: Sequence[str], tables: Sequence[Table]) -> list[str]:
    """The section on the effect of the scale: claims, charts, tables."""
    if not cells:
        return []
    sentences = saturation_findings(cells)
    return [
        "## What dividing by sqrt(d_k) does",
        "\n".join(f"- {escaped(line)}" for line in sentences),
        *(_chart(name) for name in names),
        *(table_block(table, level=3) for table in tables),
    ]


def _charts(names: Sequence[str], confidence: str) -> list[str]:
    return [_chart(name, confidence) for name in names]


def _chart(name: str, confidence: str = "") -> str:
    reading = how_to_read(name, ratio_confidence=confidence)
    return f"![{escaped(chart_title(name))}]({CHART_FOLDER}/{name}.svg)\n\n{escaped(reading)}"


def _repeat(header: RunHeader) -> str:
    return f"## How to repeat\n\n{fenced(header.command)}"
