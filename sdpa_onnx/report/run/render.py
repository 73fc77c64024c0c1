"""The report as files: summary.md and its charts, each written completely or not at all.

The content comes from `markdown` and `charts`.
"""

from collections.abc import Sequence
from pathlib import Path

from sdpa_onnx.core.records.records import Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.graph.files.whole_file import write_whole
from sdpa_onnx.report.run.charts import charts
from sdpa_onnx.report.run.markdown import render_summary
from sdpa_onnx.report.text.svg import CHART_FOLDER, to_svg
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["render"]


def render(
    records: Sequence[Record], header: RunHeader, folder: Path, *, known: SortedFindings | None = None
) -> list[Path]:
    """Write the summary and its charts into a run folder.

    Returns:
        The files written, the summary first.

    Raises:
        FolderError, OSError: If the folder is full or cannot be written; no partial file is left.
    """
    drawn = charts(records)
    written = [_write(folder / CHART_FOLDER / f"{name}.svg", to_svg(chart)) for name, chart in drawn.items()]
    return [_write(folder / "summary.md", render_summary(records, header, drawn, known=known)), *written]


def _write(path: Path, text: str) -> Path:
    """Write a temporary file in the same folder, then move it into place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
    return path
