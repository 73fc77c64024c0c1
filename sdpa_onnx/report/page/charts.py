"""Charts as the page needs them: the definition without its title, and the same chart drawn as SVG."""

from typing import TYPE_CHECKING

from sdpa_onnx.report.page.content import PageChart
from sdpa_onnx.report.text.svg import chart_definition, draw

if TYPE_CHECKING:
    import altair as alt

__all__ = ["page_chart"]


def page_chart(name: str, chart: "alt.HConcatChart | alt.ConcatChart", *, reading: str) -> PageChart:
    """Split a chart into text and picture: the title is text of the page, where it wraps on a narrow screen.

    Args:
        reading: How to read it.
    """
    spec = chart_definition(chart)
    svg = draw(spec)
    heading = spec.pop("title")
    panels = spec.pop("hconcat", None)
    if panels is not None:  # panels in rows can be put below each other on a narrow screen
        spec |= {"concat": panels, "columns": len(panels)}
    del spec["padding"]
    title = str(heading["text"])
    lines = heading.get("subtitle", [])
    spec["description"] = ". ".join([title, *lines])
    return PageChart(name=name, title=title, subtitle=tuple(lines), reading=reading, spec=spec, svg=svg)
