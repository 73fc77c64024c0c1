"""The chart of a history: a panel per case with ratios over the runs, and a line where versions changed.

Each machine and reference has one chart; the texts come from history_text.py.
"""

from typing import TYPE_CHECKING

from sdpa_onnx.core.compare.history import History, HistoryGroup, HistorySeries
from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.report.compare.history_text import case_words, group_words, marks
from sdpa_onnx.report.text.chart_axes import coded, domain_around, legend, line_layers, logarithmic_y
from sdpa_onnx.report.text.chart_style import PALETTE, SHAPES, in_rows
from sdpa_onnx.report.text.escape_control import escape_control
from sdpa_onnx.report.text.labels import series_name

if TYPE_CHECKING:
    import altair as alt

__all__ = ["history_charts"]

_PANEL_WIDTH, _PANEL_HEIGHT, _PANELS_A_ROW = 380, 200, 2
# Greatest number of run names under an axis; of more, only every n-th is printed.
_MOST_NAMES = 12
# Horizontal offset between the arms of one run, in runs; without it their intervals hide each other.
_SIDE_STEP = 0.08


def history_charts(history: History) -> dict[str, "alt.ConcatChart"]:
    """Define a chart for each group with at least two runs, by file name without extension."""
    groups = [group for group in history.groups if len(group.runs) > 1]
    return {f"history-{number}": _chart(group) for number, group in enumerate(groups, 1)}


def _chart(group: HistoryGroup) -> "alt.ConcatChart":
    arms = list(dict.fromkeys(series_name(series.newest) for series in group.series))
    cases: dict[str, list[HistorySeries]] = {}
    for series in group.series:
        cases.setdefault(case_words(group, series), []).append(series)
    panels = [_panel(group, case, found, arms) for case, found in cases.items()]
    subtitle = ["below 1 = faster; bar: interval of a run; grey line: versions changed; ring: the level changed"]
    return in_rows(panels, columns=_PANELS_A_ROW, title=f"Ratio to {group_words(group.key)}", subtitle=subtitle)


def _panel(group: HistoryGroup, case: str, found: list[HistorySeries], arms: list[str]) -> "alt.LayerChart":
    import altair as alt

    rows = _rows(found)
    domain = domain_around([*(float(row[end]) for row in rows for end in ("low", "high")), 1.0])
    data = alt.Chart(alt.InlineData(values=rows))
    shown = [arm for arm in arms if arm in {row["arm"] for row in rows}]
    # Black is reserved for the reference, which has no line here.
    looks = [(PALETTE[1:][index % (len(PALETTE) - 1)], SHAPES[index % len(SHAPES)]) for index in map(arms.index, shown)]
    colour, shape = coded("arm", (shown, [one for one, _ in looks], [one for _, one in looks]), legend(2, padding=40))
    title = f"time / time of {group.key.reference}"
    y = logarithmic_y("y", title, domain)
    base = data.encode(x=_x(group), color=colour)
    layers = [*_rules(group), *line_layers(base, y, title, shape, size=45)]
    changed = [row for row in rows if row["changed"]]
    if changed:
        ring = alt.Chart(alt.InlineData(values=changed)).mark_point(size=220, strokeWidth=2, color="#a3131b")
        layers.append(ring.encode(x=_x(group), y=y))
    return alt.LayerChart(
        layer=layers, width=_PANEL_WIDTH, height=_PANEL_HEIGHT, title=alt.TitleParams(case, fontSize=12)
    )


def _rows(found: list[HistorySeries]) -> list[dict[str, str | float | bool]]:
    middle = (len(found) - 1) / 2
    return [
        {
            "arm": series_name(series.newest),
            "x": point.run + _SIDE_STEP * (number - middle),
            "y": known(point.record.ratio),
            "low": known(point.record.ratio_low),
            "high": known(point.record.ratio_high),
            "changed": index in {change.index for change in series.changes},
        }
        for number, series in enumerate(found)
        for index, point in enumerate(series.points)
    ]


def _x(group: HistoryGroup) -> "alt.X":
    import altair as alt

    names = [run.name for run in group.runs]
    step = -(-len(names) // _MOST_NAMES)
    text = "{" + ", ".join(f"{index}: {_quoted(name)}" for index, name in enumerate(names)) + "}[datum.value]"
    axis = alt.Axis(values=list(range(0, len(names), step)), labelExpr=text, labelAngle=-35, labelLimit=150, grid=False)
    scale = alt.Scale(domain=[-0.5, len(names) - 0.5], nice=False)
    return alt.X("x:Q", title=None, scale=scale, axis=axis)


def _quoted(name: str) -> str:
    """A string literal of Vega's expression language, which is that of JSON."""
    import msgspec

    return msgspec.json.encode(escape_control(name)).decode()


def _rules(group: HistoryGroup) -> "list[alt.Chart]":
    """A line before every run that was made with other versions."""
    import altair as alt

    at = [{"x": index - 0.5} for index in marks(group)]
    if not at:
        return []
    rule = alt.Chart(alt.InlineData(values=at)).mark_rule(color="#8a8a8a", strokeDash=[4, 3], strokeWidth=1.5)
    return [rule.encode(x=_x(group))]
