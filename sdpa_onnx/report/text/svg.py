"""Altair charts as Vega-Lite definitions and as SVG text, and the name of the folder for charts next to a report."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sdpa_onnx.report.text.escape_control import escape_control_throughout

if TYPE_CHECKING:
    import altair as alt

__all__ = ["CHART_FOLDER", "chart_definition", "draw", "to_svg"]

CHART_FOLDER = "charts"


def chart_definition(chart: "alt.HConcatChart | alt.ConcatChart") -> dict[str, Any]:
    """The Vega-Lite definition of a chart; not validated, because its parts were when they were made."""
    definition: dict[str, Any] = json.loads(chart.to_json(indent=None, validate=False))
    return definition


def draw(definition: Mapping[str, Any]) -> str:
    """Draw a definition as SVG; the same definition gives the same text.

    This holds only if no mark is clipped: Vega numbers clip paths consecutively over the life of the process.
    """
    import vl_convert  # late: loads a JavaScript engine

    # A control character in a name would abort the process inside vl_convert, not raise.
    svg: str = vl_convert.vegalite_to_svg(json.dumps(escape_control_throughout(definition)))
    return svg + "\n"


def to_svg(chart: "alt.HConcatChart | alt.ConcatChart") -> str:
    """Draw a chart as SVG."""
    return draw(chart_definition(chart))
