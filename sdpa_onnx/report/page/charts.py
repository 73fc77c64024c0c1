"""Charts as the page needs them: the definition without its title, and the same chart drawn as SVG."""

from collections.abc import Mapping
from typing import Any

from sdpa_onnx.report.page.content import PageChart

__all__ = ["page_chart"]


def page_chart(name: str, definition: Mapping[str, Any], svg: str, *, reading: str) -> PageChart:
    """Split a chart into text and picture: the title is text of the page, where it wraps on a narrow screen.

    Args:
        definition: The chart as Vega-Lite.
        svg: The chart as `draw` draws it, with its title.
        reading: How to read it.
    """
    spec = dict(definition)
    heading = spec.pop("title")
    panels = spec.pop("hconcat", None)
    if panels is not None:  # panels in rows can be put below each other on a narrow screen
        spec |= {"concat": panels, "columns": len(panels)}
    del spec["padding"]
    title = str(heading["text"])
    lines = heading.get("subtitle", [])
    spec["description"] = ". ".join([title, *lines])
    return PageChart(name=name, title=title, subtitle=tuple(lines), reading=reading, spec=spec, svg=svg)
