"""The chart of the roof: the highest rate of the machine as a line, every timing as a point."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.report.text.chart_style import INK, in_rows, looks
from sdpa_onnx.report.text.chart_titles import ChartKind, chart_title
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.text.ticks import ticks
from sdpa_onnx.report.timing.roof_points import RoofPicture

if TYPE_CHECKING:
    import altair as alt

__all__ = ["roof_chart"]

_PANEL_WIDTH, _PANEL_HEIGHT = 560, 280
# Factor between neighbouring series on the logarithmic axis, so that their points do not hide each other.
_SIDE_STEP = 1.025
_TOOLTIPS = {"case": "case", "series": "arm", "rate": "useful work", "share": "share of the roof", "time": "median"}


def roof_chart(picture: RoofPicture, names: Sequence[str]) -> "alt.ConcatChart":
    """Define the chart.

    Args:
        names: All series of the run, which decide colour and shape.
    """
    import altair as alt  # late: 0.5 s

    shown, colours, shapes = looks(names, (point.series for point in picture.points))
    middle = (len(shown) - 1) / 2
    rows = [
        {
            "series": point.series,
            "case": point.case,
            "x": point.x * _SIDE_STEP ** (shown.index(point.series) - middle),
            "y": point.y,
            "rate": point.rate_words,
            "share": point.share_words,
            "time": point.time_words,
        }
        for point in picture.points
    ]
    rates = [*(point.y for point in picture.points), *(y for _, y in picture.line)]
    low, high = min(rates) / 1.15, max(rates) * 1.15
    places = [x for x, _ in picture.line]
    across = alt.Scale(type="log", base=2, domain=[places[0], places[-1]], nice=False)
    marks = sorted({round(point.x) for point in picture.points})
    x = alt.X(
        "x:Q",
        title="useful FLOP per exponential (4 d_k for one attention)",
        scale=across,
        axis=alt.Axis(values=marks, format="d", labelOverlap=True),
    )
    axis = alt.Axis(values=ticks(low, high), format="~g")
    y = alt.Y("y:Q", title="useful GFLOP/s", scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=axis)
    legend = alt.Legend(title=None, orient="bottom", direction="horizontal", columns=3)
    colour = alt.Color("series:N", scale=alt.Scale(domain=shown, range=colours), legend=legend)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=shown, range=shapes), legend=legend)
    roof = alt.Chart(alt.InlineData(values=[{"x": place, "y": rate} for place, rate in picture.line]))
    tips = [alt.Tooltip(f"{field}:N", title=title) for field, title in _TOOLTIPS.items()]
    dots = alt.Chart(alt.InlineData(values=rows)).mark_point(filled=True, size=55, opacity=1)
    # Its name is outside the panel, where no point can be. Twin: the label of the line at 1 in run/charts.py.
    end = alt.Chart(alt.InlineData(values=[{"y": picture.line[-1][1], "text": "roof: products|and exponentials"}]))
    name = end.mark_text(align="left", dx=6, fontSize=11, color=INK, lineBreak="|").encode(
        x=alt.value("width"), y=y, text="text:N"
    )
    layers = [
        roof.mark_line(color=INK, strokeWidth=2).encode(x=x, y=y),
        name,
        dots.encode(x=x, y=y, color=colour, shape=shape, tooltip=tips),
    ]
    panel = alt.LayerChart(layer=layers, width=_PANEL_WIDTH, height=_PANEL_HEIGHT)
    note = f" {count(picture.left_out, 'timing')} not drawn." if picture.left_out else ""
    return in_rows([panel], columns=1, title=chart_title(str(ChartKind.ROOF)), subtitle=[f"{picture.fixed}{note}"])
