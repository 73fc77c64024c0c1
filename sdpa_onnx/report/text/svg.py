"""Altair charts as SVG text, and the name of the folder for charts next to a report."""

import json
from typing import TYPE_CHECKING

from sdpa_onnx.report.text.escape_control import escape_control_throughout

if TYPE_CHECKING:
    import altair as alt

__all__ = ["CHART_FOLDER", "to_svg"]

CHART_FOLDER = "charts"


def to_svg(chart: "alt.HConcatChart | alt.ConcatChart") -> str:
    """Draw a chart; the same chart gives the same text.

    This holds only if no mark is clipped: Vega numbers clip paths consecutively over the life of the process.
    """
    import vl_convert  # late: loads a JavaScript engine

    # A control character in a name would abort the process inside vl_convert, not raise.
    svg: str = vl_convert.vegalite_to_svg(json.dumps(escape_control_throughout(json.loads(chart.to_json()))))
    return svg + "\n"
