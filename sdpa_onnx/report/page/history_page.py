"""The page of `report FOLDER`: ratios over the runs of a history, and the files next to the runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sdpa_onnx.core.compare.history import History
from sdpa_onnx.report.compare.history import HISTORY_TITLE, history_data, history_markdown
from sdpa_onnx.report.compare.history_chart import history_charts
from sdpa_onnx.report.compare.history_text import history_sentences, history_tables
from sdpa_onnx.report.page.charts import page_chart
from sdpa_onnx.report.page.content import PageChart, PageContent, PageSection, PageTone
from sdpa_onnx.report.page.html import page_html
from sdpa_onnx.report.page.parts import page_table, plain_data
from sdpa_onnx.report.page.render_run import write_report

__all__ = ["history_page", "render_history"]

_READING = (
    "Each line is the time of one arm over that of the reference in the same run: lower is faster. A ring marks a "
    "change of the level that chance and the usual differences between runs do not explain."
)


def render_history(history: History, folder: Path) -> list[Path]:
    """Write history.md, history.html and the charts into the folder of the runs.

    Returns:
        The files written, the page first.

    Raises:
        FolderError, OSError: If the folder is full or cannot be written; no partial file is left.
    """
    charts = [page_chart(name, chart, reading=_READING) for name, chart in history_charts(history).items()]
    svgs = {chart.name: chart.svg for chart in charts}
    page, text = page_html(history_page(history, charts)), history_markdown(history, svgs)
    return write_report({"history.html": page, "history.md": text}, svgs, folder)


def history_page(history: History, charts: Sequence[PageChart]) -> PageContent:
    """Fill the page of a history."""
    first, *others = history_sentences(history)
    tables = [page_table(table, anchor=f"table-{number}") for number, table in enumerate(history_tables(history), 1)]
    section = PageSection(anchor="runs", title="Ratios over the runs", blocks=(*charts, *tables))
    points = list(_points(history))
    return PageContent(
        title=HISTORY_TITLE,
        subtitle=", ".join(dict.fromkeys(group.key.machine for group in history.groups)),
        verdict=first,
        tone=_tone(history),
        findings=tuple(others),
        steps=(),
        sections=(section,),
        data=plain_data(points, len(points)),
    )


def _tone(history: History) -> PageTone:
    changes = [change.log_change for group in history.groups for one in group.series for change in one.changes]
    return PageTone.NEUTRAL if not changes else PageTone.BAD if max(changes) > 0 else PageTone.GOOD


def _points(history: History) -> Iterator[dict[str, Any]]:
    """A row per point; its level change, if there is one, in the same row."""
    for series in history_data(history):
        changes = {change["run"]: change["log_change"] for change in series["changes"]}
        about = {name: value for name, value in series.items() if name not in ("points", "changes")}
        for point in series["points"]:
            yield {"kind": "history", **about, **point, "log_change": changes.get(point["run"])}
