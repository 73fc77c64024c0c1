"""The report as files: summary.md and its charts, each written whole or not at all.

Decides nothing of what they say.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from sdpa_onnx.core.header import RunHeader
from sdpa_onnx.core.records import Record
from sdpa_onnx.report.charts import charts, to_svg
from sdpa_onnx.report.markdown import CHART_FOLDER, render_summary

__all__ = ["render"]


def render(records: Sequence[Record], header: RunHeader, folder: Path) -> list[Path]:
    """Write the summary and its charts into a run folder.

    Returns:
        The files written, the summary first.

    Raises:
        OSError: If the folder is full or cannot be written; no half file is left.
    """
    drawn = charts(records)
    written = [_write(folder / CHART_FOLDER / f"{name}.svg", to_svg(chart)) for name, chart in drawn.items()]
    return [_write(folder / "summary.md", render_summary(records, header, drawn)), *written]


def _write(path: Path, text: str) -> Path:
    """Write beside the place, then move there in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # tempfile would make it readable by its owner alone; a report is for others too.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
