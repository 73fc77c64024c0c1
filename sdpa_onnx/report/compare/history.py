"""A history as files next to its runs: Markdown, one self-contained HTML page, and charts.

The sentences and tables come from `history_text`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdpa_onnx.core.compare.history import History
from sdpa_onnx.graph.files.whole_file import write_whole
from sdpa_onnx.report.compare.history_chart import history_charts
from sdpa_onnx.report.compare.history_text import history_sentences, history_tables
from sdpa_onnx.report.text.escape_control import escape_control
from sdpa_onnx.report.text.markdown_parts import inert, table_block
from sdpa_onnx.report.text.svg import CHART_FOLDER, to_svg
from sdpa_onnx.report.text.table import Table

__all__ = ["history_data", "history_markdown", "history_page", "render_history"]

_TITLE = "Attention: history"


def render_history(history: History, folder: Path) -> list[Path]:
    """Write history.md, history.html and the charts into the folder of the runs.

    Returns:
        The files written, the page first.

    Raises:
        FolderError, OSError: If the folder is full or cannot be written; no partial file is left.
    """
    drawn = {name: to_svg(chart) for name, chart in history_charts(history).items()}
    texts = {"history.html": history_page(history, drawn), "history.md": history_markdown(history, drawn)}
    texts |= {f"{CHART_FOLDER}/{name}.svg": svg for name, svg in drawn.items()}
    written = []
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
        written.append(path)
    return written


def history_markdown(history: History, drawn: Mapping[str, str]) -> str:
    """Render the history as Markdown; charts are linked by relative path."""
    first, *others = [inert(sentence) for sentence in history_sentences(history)]
    blocks = [
        f"# {_TITLE}",
        f"**{first}**",
        "\n".join(f"- {sentence}" for sentence in others),
        *(f"![Ratios over the runs]({CHART_FOLDER}/{name}.svg)" for name in drawn),
        *(table_block(table, safe=inert) for table in history_tables(history)),
    ]
    return "\n\n".join(blocks) + "\n"


def history_page(history: History, drawn: Mapping[str, str]) -> str:
    """Render the history as one HTML file that loads nothing from elsewhere.

    Args:
        drawn: Charts as SVG.
    """
    from importlib.resources import files

    import jinja2

    text = (files("sdpa_onnx.report") / "page" / "history.html").read_text(encoding="utf-8")
    pages = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    tables = [{"table": table, "rows": _rows(table)} for table in history_tables(history)]
    page: str = pages.from_string(text).render(
        title=_TITLE,
        sentences=[escape_control(one) for one in history_sentences(history)],
        charts=list(drawn.values()),
        tables=tables,
    )
    return page.lstrip() + "\n"


def history_data(history: History) -> list[dict[str, Any]]:
    """Every point of every series as plain data, for `--json`."""
    return [
        {
            "machine": group.key.machine,
            "threads": group.key.threads,
            "reference": group.key.reference,
            "reference_version": group.key.reference_version,
            "target": series.newest.target,
            "case": series.newest.case,
            "arm": series.newest.arm,
            "points": [
                {
                    "run": group.runs[point.run].name,
                    "started": group.runs[point.run].header.started,
                    "ratio": point.record.ratio,
                    "ratio_low": point.record.ratio_low,
                    "ratio_high": point.record.ratio_high,
                }
                for point in series.points
            ],
            "changes": [
                {
                    "run": group.runs[series.points[change.index].run].name,
                    "log_change": change.log_change,
                    "log_low": change.log_low,
                    "log_high": change.log_high,
                    "p_value": change.p_value,
                }
                for change in series.changes
            ],
        }
        for group in history.groups
        for series in group.series
    ]


def _rows(table: Table) -> list[list[str]]:
    """Rows, each with the heading of its section in front if the table has section headings."""
    rows = [(section.heading, row) for section in table.sections for row in section.rows]
    return [
        [escape_control(cell) for cell in ([heading] if table.heading else []) + list(row)] for heading, row in rows
    ]
