"""The chart of all ratios: a row per case, a dot with its interval per arm, causal cases next to the others."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.report.text.chart_axes import case_axis, coded, domain_around, legend
from sdpa_onnx.report.text.chart_style import INK, PAPER, in_rows, looks
from sdpa_onnx.report.text.chart_titles import ChartKind, chart_title
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.text.ticks import ticks
from sdpa_onnx.report.timing.ratio_points import RatioCase, RatioPanel, RatioPicture

if TYPE_CHECKING:
    import altair as alt

__all__ = ["ratio_chart"]

# Width of one of two panels, and of a panel alone, in pixels.
_PANEL_WIDTH, _ALONE_WIDTH = 330, 560
# Height of a dot's lane, and of the gap between two cases, in pixels.
_LANE, _GAP = 12, 1
_TOOLTIPS = {
    "case": "case",
    "id": "case id",
    "series": "arm",
    "verdict": "verdict",
    "ratio": "time / baseline",
    "time": "median",
    "against": "baseline",
}


def ratio_chart(picture: RatioPicture, names: Sequence[str], *, title: str = "") -> "alt.ConcatChart":
    """Define the chart.

    Args:
        names: All series of the run, which decide colour and shape.
        title: Its title, if it is not that of the ratios of a run.
    """
    ends = [
        end for panel in picture.panels for case in panel.cases for one in case.points for end in (one.low, one.high)
    ]
    domain = domain_around([*ends, 1.0])
    left_out = sum(panel.left_out for panel in picture.panels)
    note = f" {count(left_out, 'case')} with smaller effects not drawn." if left_out else ""
    return in_rows(
        [_panel(picture, panel, names, domain) for panel in picture.panels],
        columns=2,
        title=title or chart_title(str(ChartKind.RATIOS)),
        subtitle=[picture.fixed, f"Filled: the verdict is proven. Hollow: undecided or doubtful.{note}"],
    )


def _panel(
    picture: RatioPicture, panel: RatioPanel, names: Sequence[str], domain: tuple[float, float]
) -> "alt.LayerChart":
    import altair as alt  # late: 0.5 s

    lanes = list(_lanes(panel.cases))
    last = lanes[-1]["y"] if lanes else 0.0
    centres = _centres(panel.cases)
    colour, shape = coded("series", looks(names, picture.series), legend(3))
    side = f"faster  \N{LEFTWARDS ARROW}  time / time of {picture.baseline}  \N{RIGHTWARDS ARROW}  slower"
    axis = alt.Axis(values=ticks(*domain), format="~g", orient="top", labelOverlap="greedy", labelSeparation=4)
    x = alt.X("x:Q", title=side, scale=alt.Scale(type="log", domain=list(domain), nice=False), axis=axis)
    scale = alt.Scale(domain=[-0.8, float(last) + 0.8], reverse=True, nice=False, zero=False)
    labels = case_axis(centres, [case.label for case in panel.cases])
    y = alt.Y("y:Q", title=None, scale=scale, axis=labels)
    tips = [alt.Tooltip(f"{field}:N", title=title) for field, title in _TOOLTIPS.items()]
    base = alt.Chart(alt.InlineData(values=lanes)).encode(y=y, color=colour, tooltip=tips)
    hollow = alt.condition("datum.decided", colour, alt.value(PAPER))
    one = alt.Chart(alt.InlineData(values=[{"x": 1.0}])).mark_rule(color=INK, strokeWidth=1.5, strokeDash=[5, 4])
    layers = [
        *_separators(panel.cases, y),
        one.encode(x=x),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=side), x2="high:Q"),
        base.mark_point(size=48, opacity=1, strokeWidth=1.8).encode(x=x, shape=shape, fill=hollow),
    ]
    height = _LANE * (float(last) + 1.6)
    return alt.LayerChart(
        layer=layers,
        width=_ALONE_WIDTH if len(picture.panels) == 1 else _PANEL_WIDTH,
        height=height,
        title=alt.TitleParams(panel.title, fontSize=12, anchor="middle"),
    )


def _lanes(cases: Sequence[RatioCase]) -> Iterator[dict[str, str | float | bool]]:
    """One row of data per dot; y counts lanes from the top, with a gap after each case."""
    place = 0.0
    for case in cases:
        for number, point in enumerate(case.points):
            yield {
                "case": case.label,
                "id": case.case_id,
                "series": point.series,
                "y": place + number,
                "x": point.ratio,
                "low": point.low,
                "high": point.high,
                "decided": point.is_decided,
                "verdict": point.verdict,
                "ratio": point.ratio_words,
                "time": point.time_words,
                "against": point.baseline_words,
            }
        place += len(case.points) + _GAP


def _centres(cases: Sequence[RatioCase]) -> list[float]:
    """The middle of each case, where its label is."""
    centres, place = [], 0.0
    for case in cases:
        centres.append(place + (len(case.points) - 1) / 2)
        place += len(case.points) + _GAP
    return centres


def _separators(cases: Sequence[RatioCase], y: "alt.Y") -> "list[alt.Chart]":
    """A thin line between two cases."""
    import altair as alt

    places, place = [], 0.0
    for case in cases[:-1]:
        place += len(case.points) + _GAP
        places.append({"y": place - (1 + _GAP) / 2})
    if not places:
        return []
    return [alt.Chart(alt.InlineData(values=places)).mark_rule(color="#e6e6e6").encode(y=y)]
