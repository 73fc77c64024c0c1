"""What all charts have in common: palette, shapes, background, title and type sizes; draws no data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import altair as alt

__all__ = ["PALETTE", "SHAPES", "side_by_side"]

# Source: Okabe and Ito 2008, "Color universal design", without the yellow that white swallows; black for the baseline.
PALETTE = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")


def side_by_side(panels: Sequence["alt.LayerChart"], *, title: str, subtitle: Sequence[str]) -> "alt.HConcatChart":
    """Put panels in a row under one title.

    Args:
        subtitle: Lines that say what stays the same.
    """
    import altair as alt  # late: 0.5 s

    heading = alt.TitleParams(title, subtitle=list(subtitle), anchor="start", offset=14)
    joined: alt.HConcatChart = (
        alt.hconcat(*panels, spacing=36)
        .properties(title=heading, background="white", padding=12)
        .configure_title(fontSize=15, subtitleFontSize=12, color="#1a1a1a", subtitleColor="#555555")
        .configure_axis(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#e6e6e6")
        .configure_legend(labelFontSize=12, labelLimit=0, symbolSize=90)
        .configure_view(stroke="#bbbbbb")
    )
    return joined
