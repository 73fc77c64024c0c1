"""Axes, colours and layers that all charts share; the style of a chart is in chart_style.py."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.report.text.chart_style import labels_expression
from sdpa_onnx.report.text.ticks import ticks

if TYPE_CHECKING:
    import altair as alt

__all__ = ["case_axis", "coded", "domain_around", "legend", "line_layers", "logarithmic_y", "size_x"]


def domain_around(ends: Iterable[float]) -> tuple[float, float]:
    """The ends of a logarithmic axis: room around positive values, of which there is at least one."""
    values = list(ends)
    room = max((max(values) / min(values)) ** 0.06, 1.01)
    return min(values) / room, max(values) * room


def logarithmic_y(field: str, title: str, domain: tuple[float, float]) -> "alt.Y":
    """A vertical axis with ticks at round values."""
    import altair as alt  # late: 0.5 s

    axis = alt.Axis(values=ticks(*domain), format="~g" if domain[0] > 1e-3 else "~e")
    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(type="log", domain=list(domain), nice=False), axis=axis)


def size_x(sizes: Iterable[int], title: str) -> "alt.X":
    """A horizontal axis of sizes, which are mostly powers of two, with a tick at each."""
    import altair as alt

    values = sorted(set(sizes))
    scale = alt.Scale(type="log", base=2, domain=[values[0] / 1.15, values[-1] * 1.15], nice=False)
    return alt.X("x:Q", title=title, scale=scale, axis=alt.Axis(values=values, format="d"))


def case_axis(centres: Sequence[float], labels: Sequence[str]) -> "alt.Axis":
    """The axis of a chart with a row per case: its label in the middle of its lanes."""
    import altair as alt

    return alt.Axis(
        values=list(centres),
        labelExpr=labels_expression(centres, labels),
        labelLimit=0,
        grid=False,
        ticks=False,
        domain=False,
        labelPadding=8,
    )


def legend(columns: int, *, title: str | None = None, padding: int = 10) -> "alt.Legend":
    """A legend below the panel, where it covers nothing.

    Args:
        columns: Entries in a row; padding: pixels between them.
    """
    import altair as alt

    return alt.Legend(
        title=title,
        titleOrient="left",
        orient="bottom",
        direction="horizontal",
        columns=columns,
        columnPadding=padding,
        symbolStrokeWidth=2,
    )


def coded(
    field: str, looks: tuple[Sequence[str], Sequence[str], Sequence[str]], shown: "alt.Legend | None"
) -> "tuple[alt.Color, alt.Shape]":
    """Colour and shape of each series, so that neither alone has to be seen.

    Args:
        looks: Names, colours and shapes, as `looks` of chart_style.py returns them.
        shown: The legend; None = the series are named elsewhere.
    """
    import altair as alt

    names, colours, shapes = (list(one) for one in looks)
    return (
        alt.Color(f"{field}:N", scale=alt.Scale(domain=names, range=colours), legend=shown),
        alt.Shape(f"{field}:N", scale=alt.Scale(domain=names, range=shapes), legend=shown),
    )


def line_layers(
    base: "alt.Chart", y: "alt.Y", title: str, shape: "alt.Shape", *, with_bars: bool = True, size: int = 55
) -> "list[alt.Chart]":
    """Points joined by a line, with the bars of their intervals from `low` to `high` under both."""
    import altair as alt

    bars = [base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q", title=title), y2="high:Q")]
    return [
        *(bars if with_bars else []),
        base.mark_line(strokeWidth=1.5).encode(y=y),
        base.mark_point(filled=True, size=size, opacity=1).encode(y=y, shape=shape),
    ]
