"""The report of a run as files: summary.md, its charts and index.html, each written completely or not at all."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sdpa_onnx.core.records.records import Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.graph.files.whole_file import write_whole
from sdpa_onnx.report.page.charts import page_chart
from sdpa_onnx.report.page.html import page_html
from sdpa_onnx.report.page.run_page import page_of
from sdpa_onnx.report.run.charts import charts
from sdpa_onnx.report.run.gathered_run import gather_run
from sdpa_onnx.report.run.markdown import summary_of
from sdpa_onnx.report.text.chart_titles import how_to_read
from sdpa_onnx.report.text.labels import join_words
from sdpa_onnx.report.text.svg import CHART_FOLDER
from sdpa_onnx.report.timing.comparisons import comparisons
from sdpa_onnx.report.timing.verdict_text import confidences
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["PAGE_FILE", "render", "write_report"]

PAGE_FILE = "index.html"


def render(
    records: Sequence[Record], header: RunHeader, folder: Path, *, known: SortedFindings | None = None
) -> list[Path]:
    """Write the page, the summary and the charts into a run folder.

    Returns:
        The files written, the page first.

    Raises:
        FolderError, OSError: If the folder is full or cannot be written; no partial file is left.
    """
    confidence = join_words(confidences(comparisons(records)))
    shown = [
        page_chart(name, chart, reading=how_to_read(name, ratio_confidence=confidence))
        for name, chart in charts(records, header.ceilings).items()
    ]
    svgs = {chart.name: chart.svg for chart in shown}
    run = gather_run(records, header, known=known)
    texts = {PAGE_FILE: page_html(page_of(run, shown)), "summary.md": summary_of(run, svgs)}
    return write_report(texts, svgs, folder)


def write_report(texts: Mapping[str, str], svgs: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the files of a report; return their paths.

    Args:
        texts: File name -> text. svgs: Name of a chart -> SVG.
    """
    files = {**texts, **{f"{CHART_FOLDER}/{name}.svg": svg for name, svg in svgs.items()}}
    return [_write(folder / name, text) for name, text in files.items()]


def _write(path: Path, text: str) -> Path:
    """Write a temporary file in the same folder, then move it into place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
    return path
