"""The charts of a run: points to altair definitions.

The background is white. The palette is readable for colour-blind people, and every arm has a shape. The numbers come
from timing/chart_points.py; the charts of saturation are in saturation/charts.py.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.core.records.records import Record
from sdpa_onnx.report.saturation.charts import saturation_charts
from sdpa_onnx.report.text.chart_axes import coded, domain_around, legend, line_layers, logarithmic_y, size_x
from sdpa_onnx.report.text.chart_style import looks, side_by_side
from sdpa_onnx.report.text.chart_titles import ChartKind, chart_title
from sdpa_onnx.report.text.labels import CaseFactor
from sdpa_onnx.report.timing.chart_points import ChartPoint, ChartSeries, chart_series, series_names
from sdpa_onnx.report.timing.ratio_chart import ratio_chart
from sdpa_onnx.report.timing.ratio_points import ratio_picture
from sdpa_onnx.report.timing.roof_chart import roof_chart
from sdpa_onnx.report.timing.roof_points import roof_picture

if TYPE_CHECKING:
    import altair as alt

__all__ = ["charts"]

# Factor between neighbouring series on the logarithmic horizontal axis.
_SIDE_STEP = 1.04

_PANEL_WIDTH, _PANEL_HEIGHT = 330, 260
_AXIS_TITLES = {CaseFactor.LENGTH: "length (tokens)", CaseFactor.HEAD_DIM: "d_k (width of one head, elements)"}


def charts(
    records: Sequence[Record], ceilings: Mapping[str, float] | None = None
) -> "dict[str, alt.HConcatChart | alt.ConcatChart]":
    """Define every chart that has data, by file name without extension, in the order of a report.

    Args:
        ceilings: Ceilings measured in the same run, as in `RunHeader`; None = not known.
    """
    names = series_names(records)
    drawn: dict[str, alt.HConcatChart | alt.ConcatChart] = {}
    if ratios := ratio_picture(records):
        drawn[str(ChartKind.RATIOS)] = ratio_chart(ratios, names)
    drawn |= {str(series.name): _chart(series, names) for series in chart_series(records)}
    if roof := roof_picture(records, ceilings or {}):
        drawn[str(ChartKind.ROOF)] = roof_chart(roof, names)
    return drawn | saturation_charts(records)


def _chart(series: ChartSeries, names: Sequence[str]) -> "alt.HConcatChart":
    is_time = series.name.kind is not ChartKind.ERROR_OVER_HEAD_DIM
    absolute = _panel(series, series.absolute, names, title=_absolute_title(series))
    relative = _panel(series, series.relative, names, title=_relative_title(series)) + _line_at_one(series)
    panels = (absolute, relative) if is_time else (relative, absolute)
    return side_by_side(panels, title=chart_title(str(series.name)), subtitle=[series.fixed])


def _absolute_title(series: ChartSeries) -> str:
    return f"time of a call ({series.unit})" if series.unit else "largest absolute error"


def _relative_title(series: ChartSeries) -> str:
    return f"time / time of {series.baseline}" if series.baseline else "largest error / proven bound"


def _panel(series: ChartSeries, points: Sequence[ChartPoint], names: Sequence[str], *, title: str) -> "alt.LayerChart":
    import altair as alt

    every = (point.series for point in (*series.absolute, *series.relative))
    colour, shape = coded("series", looks(names, every), legend(4))
    sizes = (point.x for point in (*series.absolute, *series.relative))
    x = size_x(sizes, _AXIS_TITLES[series.name.kind.axis])
    base = alt.Chart(alt.InlineData(values=_rows(series, points, names))).encode(x=x, color=colour)
    ends = [end for point in points for end in (point.low, point.high) if end > 0]
    y = logarithmic_y("y", title, domain_around([*ends, 1.0] if points is series.relative else ends))
    layers = line_layers(base, y, title, shape, with_bars=any(point.low < point.high for point in points))
    return alt.LayerChart(layer=layers, width=_PANEL_WIDTH, height=_PANEL_HEIGHT)


def _rows(series: ChartSeries, points: Sequence[ChartPoint], names: Sequence[str]) -> list[dict[str, str | float]]:
    """The data of a panel. Bars of ratios are shifted side by side, because overlapping bars look like one.

    So are errors, which are often equal. Times are not shifted: their lines are steep, and a shift would look like a
    difference.
    """
    is_error = series.name.kind is ChartKind.ERROR_OVER_HEAD_DIM
    has_bars = points is series.relative and any(point.low < point.high for point in points)
    step = _SIDE_STEP if has_bars or is_error else 1.0
    shown = [name for name in names if name in {point.series for point in points}]
    middle = (len(shown) - 1) / 2
    return [
        {
            "series": point.series,
            "x": point.x * step ** (shown.index(point.series) - middle),
            "y": point.y,
            "low": point.low,
            "high": point.high,
        }
        for point in points
    ]


def _line_at_one(series: ChartSeries) -> "alt.LayerChart":
    """The line at 1: the baseline, or the proven bound. Its label is outside the panel, where no point can be."""
    import altair as alt

    text = series.baseline or "bound"
    data = alt.Chart(alt.InlineData(values=[{"one": 1.0, "text": text}]))
    rule = data.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color="#333333").encode(y="one:Q")
    label = data.mark_text(align="left", dx=5, fontSize=11, color="#333333").encode(
        y="one:Q", x=alt.value("width"), text="text:N"
    )
    return alt.LayerChart(layer=[rule, label])
