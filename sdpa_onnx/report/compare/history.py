"""A history as Markdown and as plain data; its sentences and tables come from `history_text`."""

from collections.abc import Mapping
from typing import Any

from sdpa_onnx.core.compare.history import History
from sdpa_onnx.report.compare.history_text import history_sentences, history_tables
from sdpa_onnx.report.text.markdown_parts import inert, table_block
from sdpa_onnx.report.text.svg import CHART_FOLDER

__all__ = ["HISTORY_TITLE", "history_data", "history_markdown"]

HISTORY_TITLE = "Attention: history"


def history_markdown(history: History, drawn: Mapping[str, str]) -> str:
    """Render the history as Markdown; charts are linked by relative path."""
    first, *others = [inert(sentence) for sentence in history_sentences(history)]
    blocks = [
        f"# {HISTORY_TITLE}",
        f"**{first}**",
        "\n".join(f"- {sentence}" for sentence in others),
        *(f"![Ratios over the runs]({CHART_FOLDER}/{name}.svg)" for name in drawn),
        *(table_block(table, safe=inert) for table in history_tables(history)),
    ]
    return "\n\n".join(blocks) + "\n"


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
