"""The charts of saturation: a row of small multiples over d_k or length, one colour and shape per scale rule.

The numbers come from points.py.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.core.records.records import Record
from sdpa_onnx.report.saturation.points import PANELS, Panel, SaturationPoint, SaturationSeries, saturation_series
from sdpa_onnx.report.text.chart_axes import coded, domain_around, legend, logarithmic_y, size_x
from sdpa_onnx.report.text.chart_style import PALETTE, SHAPES, side_by_side
from sdpa_onnx.report.text.chart_titles import chart_title
from sdpa_onnx.report.text.labels import CaseFactor
from sdpa_onnx.report.text.number_text import count

if TYPE_CHECKING:
    import altair as alt

__all__ = ["saturation_charts"]

_PANEL_WIDTH, _PANEL_HEIGHT = 210, 210
_AXIS_TITLES = {CaseFactor.LENGTH: "length S (keys of a row)", CaseFactor.HEAD_DIM: "d_k (width of one head)"}
# A rule has the same colour and shape in all charts.
_LOOKS = {
    rule.value: (PALETTE[place], SHAPES[place])
    for rule, place in ((ScaleRule.NONE, 2), (ScaleRule.INVERSE_SQRT, 1), (ScaleRule.INVERSE, 3))
}
# From 0 to 1 with room for the marks at both ends.
_SHARE_DOMAIN = (-0.04, 1.04)
_LEGEND = (
    "Points: measured, with two standard errors. Solid lines: exact prediction. Hollow: median row, not predicted."
)


def saturation_charts(records: Sequence[Record]) -> dict[str, "alt.HConcatChart"]:
    """Define the charts that have a line, by file name without extension."""
    return {str(series.name): _chart(series) for series in saturation_series(records)}


def _chart(series: SaturationSeries) -> "alt.HConcatChart":
    panels = [
        _panel(series, panel, filled, hollow)
        for panel, filled, hollow in zip(PANELS, series.filled, series.hollow, strict=True)
        if filled or hollow
    ]
    left_out = f" {count(series.left_out, 'point')} not drawn (zero or not finite)." if series.left_out else ""
    return side_by_side(panels, title=chart_title(str(series.name)), subtitle=[series.fixed, f"{_LEGEND}{left_out}"])


def _panel(
    series: SaturationSeries, panel: Panel, filled: Sequence[SaturationPoint], hollow: Sequence[SaturationPoint]
) -> "alt.LayerChart":
    import altair as alt  # late: 0.5 s

    domain = _domain([*filled, *hollow]) if panel.is_logarithmic else _SHARE_DOMAIN
    colours, shapes = zip(*(_LOOKS[rule] for rule in series.rules), strict=True)
    colour, shape = coded("rule", (series.rules, colours, shapes), legend(len(_LOOKS), title="scale"))
    base = alt.Chart(alt.InlineData(values=_rows(filled, domain[0]))).encode(x=_x(series), color=colour)
    value = _y("y:Q", panel, domain)
    layers = [
        base.mark_line(strokeWidth=1.5)
        .transform_filter("isValid(datum.predicted)")
        .encode(y=_y("predicted:Q", panel, domain))
    ]
    if hollow:
        second = alt.Chart(alt.InlineData(values=_rows(hollow, domain[0]))).encode(x=_x(series), color=colour)
        layers.append(second.mark_line(strokeWidth=1, strokeDash=[2, 3]).encode(y=value))
        layers.append(second.mark_rule(strokeWidth=1.5).encode(y=_y("low:Q", panel, domain), y2="high:Q"))
        layers.append(second.mark_point(filled=False, fill="white", size=50, opacity=1).encode(y=value, shape=shape))
    layers.append(base.mark_rule(strokeWidth=1.5).encode(y=_y("low:Q", panel, domain), y2="high:Q"))
    layers.append(base.mark_point(filled=True, size=45, opacity=1).encode(y=value, shape=shape))
    return alt.LayerChart(layer=layers, width=_PANEL_WIDTH, height=_PANEL_HEIGHT)


def _rows(points: Sequence[SaturationPoint], floor: float) -> list[dict[str, str | float | None]]:
    """The data of a panel; a bar that reaches below the range of the axis is cut at its edge."""
    return [
        {
            "rule": point.rule,
            "x": point.x,
            "y": point.y,
            "low": max(point.low, floor),
            "high": point.high,
            "predicted": point.predicted,
        }
        for point in points
    ]


def _x(series: SaturationSeries) -> "alt.X":
    sizes = (point.x for points in (*series.filled, *series.hollow) for point in points)
    return size_x(sizes, _AXIS_TITLES[series.name.kind.axis])


def _y(field: str, panel: Panel, domain: tuple[float, float]) -> "alt.Y":
    import altair as alt

    if not panel.is_logarithmic:
        marks = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        scale = alt.Scale(domain=list(domain), nice=False, zero=False)
        return alt.Y(field, title=panel.title, scale=scale, axis=alt.Axis(values=marks, format=".1f"))
    return logarithmic_y(field.removesuffix(":Q"), panel.title, domain)


def _domain(points: Sequence[SaturationPoint]) -> tuple[float, float]:
    """The ends of a logarithmic axis: room around points, bars and predictions."""
    return domain_around(
        end
        for point in points
        for end in (point.y, point.low, point.high, point.predicted)
        if end is not None and 0 < end < math.inf
    )
