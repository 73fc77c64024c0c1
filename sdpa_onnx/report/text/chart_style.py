"""The style of all charts: palette, shapes, background, title and font sizes; draws no data."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.report.text.escape_control import escape_control

if TYPE_CHECKING:
    import altair as alt

__all__ = ["INK", "PALETTE", "PAPER", "SHAPES", "in_rows", "labels_expression", "looks", "side_by_side"]

# Twins: the colours in page/page.css, which replaces each of them on a dark background.
INK, PAPER = "#333333", "#ffffff"

# Source: Okabe and Ito 2008, "Color universal design", without yellow, which is hard to see on white. Black is the
# baseline.
PALETTE = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")


def looks(names: Sequence[str], shown: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """Series in order, with colour and shape of each; a series has the same in all charts of a report.

    Args:
        names: All series of the report.
        shown: Series of this chart.
    """
    wanted = set(shown)
    places = [place for place, name in enumerate(names) if name in wanted]
    return (
        [names[place] for place in places],
        [_colour(place) for place in places],
        [SHAPES[place % len(SHAPES)] for place in places],
    )


def _colour(place: int) -> str:
    """Black only for the first series, the baseline; the others share the rest, with other shapes."""
    return PALETTE[place] if place < len(PALETTE) else PALETTE[1 + (place - len(PALETTE)) % (len(PALETTE) - 1)]


def labels_expression(values: Sequence[float], labels: Sequence[str]) -> str:
    """An expression of Vega that labels the values of an axis.

    Its string literals are those of JSON, so that no label can become code.
    """
    quoted = [json.dumps(escape_control(label)) for label in labels]
    pairs = ", ".join(f'"{value:g}": {text}' for value, text in zip(values, quoted, strict=True))
    return f"{{{pairs}}}[toString(datum.value)]"


def side_by_side(panels: Sequence["alt.LayerChart"], *, title: str, subtitle: Sequence[str]) -> "alt.HConcatChart":
    """Put panels in a row under one title.

    Args:
        subtitle: Lines that name the fixed factors.
    """
    import altair as alt  # late: 0.5 s

    return alt.HConcatChart(
        hconcat=list(panels), spacing=36, title=_heading(title, subtitle), background=PAPER, padding=12, config=_style()
    )


def in_rows(
    panels: Sequence["alt.LayerChart"], *, columns: int, title: str, subtitle: Sequence[str]
) -> "alt.ConcatChart":
    """Put panels in rows of `columns` panels under one title."""
    import altair as alt

    return alt.ConcatChart(
        concat=list(panels),
        columns=columns,
        spacing=30,
        title=_heading(title, subtitle),
        background=PAPER,
        padding=12,
        config=_style(),
    )


def _heading(title: str, subtitle: Sequence[str]) -> "alt.TitleParams":
    import altair as alt

    return alt.TitleParams(title, subtitle=list(subtitle), anchor="start", offset=14)


def _style() -> "alt.Config":
    """Given with the chart: every `configure_` method would copy the chart with its data."""
    import altair as alt

    return alt.Config(
        title=alt.TitleConfig(fontSize=15, subtitleFontSize=12, color="#1a1a1a", subtitleColor="#555555"),
        axis=alt.AxisConfig(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#e6e6e6"),
        legend=alt.LegendConfig(labelFontSize=12, labelLimit=0, symbolSize=90),
        view=alt.ViewConfig(stroke="#bbbbbb"),
    )
