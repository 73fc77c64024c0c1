"""The chart of the roof: a labelled row per case, a bar per arm, and the roof as a line at 100 %."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from sdpa_onnx.report.text.chart_axes import case_axis, coded, legend
from sdpa_onnx.report.text.chart_style import INK, in_rows, looks
from sdpa_onnx.report.text.chart_titles import ChartKind, chart_title
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.timing.roof_points import RoofPicture

if TYPE_CHECKING:
    import altair as alt

__all__ = ["roof_chart"]

_PANEL_WIDTH = 560
# Height of the lane of a bar in pixels; half the thickness of a bar and the gap between two cases in lanes.
_LANE, _HALF, _GAP = 11, 0.42, 1
_TOOLTIPS = {
    "case": "case",
    "id": "case id",
    "series": "arm",
    "share": "share of the roof",
    "rate": "useful work",
    "bound": "bound by",
    "time": "median",
}


def roof_chart(picture: RoofPicture, names: Sequence[str]) -> "alt.ConcatChart":
    """Define the chart.

    Args:
        names: All series of the run, which decide the colour.
    """
    import altair as alt  # late: 0.5 s

    bars = list(_rows(picture))
    colour, _ = coded("series", looks(names, (str(bar["series"]) for bar in bars)), legend(3))
    longest = max(1.0, *(float(bar["x"]) for bar in bars)) * 1.04
    scale = alt.Scale(domain=[0, longest], nice=False)
    percents = alt.Axis(format=".0%", orient="top", tickCount=6)
    x = alt.X("x:Q", title="share of the roof", scale=scale, axis=percents)
    centres = [(int(rows[0]["lane"]) + int(rows[-1]["lane"])) / 2 for rows in _by_case(bars)]
    labels = case_axis(centres, [case.label for case in picture.cases])
    last = int(bars[-1]["lane"])
    down = alt.Scale(domain=[-1, last + 1], reverse=True, nice=False, zero=False)
    y = alt.Y("top:Q", title=None, scale=down, axis=labels)
    tips = [alt.Tooltip(f"{field}:N", title=title) for field, title in _TOOLTIPS.items()]
    data = alt.Chart(alt.InlineData(values=bars)).mark_rect()
    roof = alt.Chart(alt.InlineData(values=[{"x": 1.0}])).mark_rule(color=INK, strokeWidth=1.5, strokeDash=[5, 4])
    layers = [
        data.encode(x=x, x2="zero:Q", y=y, y2="bottom:Q", color=colour, tooltip=tips),
        roof.encode(x=x),
    ]
    panel = alt.LayerChart(layer=layers, width=_PANEL_WIDTH, height=_LANE * (last + 2))
    note = f" {count(picture.left_out, 'case')} not drawn." if picture.left_out else ""
    return in_rows([panel], columns=1, title=chart_title(str(ChartKind.ROOF)), subtitle=[f"{picture.fixed}{note}"])


def _rows(picture: RoofPicture) -> Iterator[dict[str, str | float | int]]:
    """One row of data per bar; y counts lanes from the top, with a gap after each case."""
    place = 0
    for number, case in enumerate(picture.cases):
        for bar in case.bars:
            yield {
                "number": number,
                "case": case.label,
                "id": case.case_id,
                "series": bar.series,
                "lane": place,
                "top": place - _HALF,
                "bottom": place + _HALF,
                "zero": 0,
                "x": bar.share,
                "share": bar.share_words,
                "rate": bar.rate_words,
                "bound": bar.bound_by,
                "time": bar.time_words,
            }
            place += 1
        place += _GAP


def _by_case(bars: Sequence[dict[str, str | float | int]]) -> list[list[dict[str, str | float | int]]]:
    return [list(rows) for _, rows in groupby(bars, key=lambda bar: bar["number"])]
