"""The chart of `bench` as a file: the picture alone, or a page with the verdict, the tables and the data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.graph.files.whole_file import write_whole
from sdpa_onnx.report.page.charts import page_chart
from sdpa_onnx.report.page.content import PageContent, PageSection, PageText, PageTone
from sdpa_onnx.report.page.html import page_html
from sdpa_onnx.report.page.parts import page_data, page_table
from sdpa_onnx.report.text.svg import to_svg
from sdpa_onnx.report.timing.bench_chart import bench_chart
from sdpa_onnx.report.timing.bench_table import bench_text
from sdpa_onnx.workflows.bench.bench_files import BenchResult

if TYPE_CHECKING:
    import altair as alt

__all__ = ["write_chart"]

_READING = "A dashed line at 1 is the baseline: below it an arm is faster. If a bar crosses it, nothing is claimed."


def write_chart(
    results: Sequence[BenchResult], path: Path, *, refused: Sequence[TimingRecord] = (), against: str = ""
) -> bool:
    """Draw the comparisons into a file, .svg or .html (one file that loads nothing).

    Args:
        results: Finished comparisons. refused, against: As in `bench_text`.

    Returns:
        False if no arm has a time, so that there is nothing to draw.

    Raises:
        FolderError, OSError: If it cannot be written; no partial file is left.
    """
    chart = bench_chart(results)
    if chart is None:
        return False
    text = to_svg(chart) if path.suffix == ".svg" else page_html(_page(results, refused, chart, against))
    write_whole(path, text.encode())
    return True


def _page(
    results: Sequence[BenchResult], refused: Sequence[TimingRecord], chart: "alt.HConcatChart", against: str
) -> PageContent:
    text = bench_text(results, refused, against=against, lengths=len(results))
    first, *others = text.verdicts
    records: list[Record] = [*refused]
    for one in results:
        records += [*one.records, *one.numbers.records]
    is_wrong = any(one.numbers.warnings for one in results)
    tone = PageTone.BAD if is_wrong else PageTone.DOUBT if text.alarms else PageTone.NEUTRAL
    times = PageSection(
        anchor="times",
        title="Times and ratios",
        blocks=(
            page_chart("bench", chart, reading=_READING),
            *(page_table(table, anchor=f"table-{number}") for number, table in enumerate(text.tables, 1)),
            PageText(lines=text.notes),
        ),
    )
    return PageContent(
        title=f"Attention: {chart.to_dict()['title']['text']}",
        subtitle="",
        verdict=first,
        tone=tone,
        findings=(*others, *text.alarms),
        steps=(),
        sections=(times,),
        data=page_data(records),
    )
