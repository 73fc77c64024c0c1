"""The chart of one `bench`: time and ratio of every arm, over the length if there are several lengths.

Background, shapes and colours are those of ../run/charts.py; the numbers are those of the table.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.report.text.chart_axes import coded, domain_around, legend, line_layers, logarithmic_y, size_x
from sdpa_onnx.report.text.chart_style import PALETTE, SHAPES, side_by_side
from sdpa_onnx.report.text.labels import clock_in_words, join_words
from sdpa_onnx.report.text.number_text import confidence_text, count, time_unit
from sdpa_onnx.report.text.ticks import ticks
from sdpa_onnx.report.timing.bench_points import ComparisonLine, along_length, arm_names, overtakings, sizes_words
from sdpa_onnx.workflows.bench.bench_files import BenchResult

if TYPE_CHECKING:
    import altair as alt

__all__ = ["bench_chart"]

_PANEL_WIDTH, _PANEL_HEIGHT, _ROW_HEIGHT = 330, 260, 34

Row = dict[str, str | float]


def bench_chart(results: Sequence[BenchResult]) -> "alt.HConcatChart | None":
    """Define the chart; None if no arm has a time."""
    along = along_length(results)
    if not along.sized:
        return None
    rows = _rows(along)
    names = arm_names(along)
    first = along.sized[0].comparison.first
    times, unit = _times(rows)
    time = _panel(along, names, times, title=f"median time of a call ({unit})")
    ratio = _panel(along, names, _ratios(rows), title=f"time / time of {first.baseline}")
    panels = (time, ratio + _lines(along))
    return side_by_side(panels, title=f"Time of a call: {first.target}", subtitle=_subtitle(along))


def _subtitle(along: ComparisonLine) -> list[str]:
    arms = [arm for one in along.sized for arm in one.comparison.arms]
    fixed = {
        axis: size for axis, size in along.sized[0].sizes.items() if all(one.sizes[axis] == size for one in along.sized)
    }
    confidence = join_words(sorted({confidence_text(known(arm.confidence)) for arm in arms}))
    clock = join_words(sorted({clock_in_words(arm.clock) for arm in arms}))
    threads = join_words([count(number, "thread") for number in sorted({arm.threads for arm in arms})])
    parts = (
        sizes_words(fixed),
        along.sized[0].comparison.first.dtype,
        threads,
        clock,
        f"bars: {confidence} interval of the ratio",
    )
    return [", ".join(part for part in parts if part)]


def _rows(along: ComparisonLine) -> list[Row]:
    """A row per arm and comparison, in seconds."""
    return [
        {
            "series": arm.arm,
            "x": float(along.length(one)),
            "seconds": known(arm.median_seconds),
            "seconds_low": known(arm.median_low),
            "seconds_high": known(arm.median_high),
            "ratio": known(arm.ratio),
            "ratio_low": known(arm.ratio_low),
            "ratio_high": known(arm.ratio_high),
            "is_baseline": float(arm.arm == arm.baseline),
        }
        for one in along.sized
        for arm in one.comparison.arms
    ]


def _times(rows: Sequence[Row]) -> tuple[list[Row], str]:
    size, unit = time_unit(min(float(row["seconds"]) for row in rows))
    return [_row(row, "seconds", size) for row in rows], unit


def _ratios(rows: Sequence[Row]) -> list[Row]:
    return [_row(row, "ratio", 1.0) for row in rows if not row["is_baseline"]]


def _row(row: Row, what: str, size: float) -> Row:
    """One point; an interval that a logarithmic axis cannot show is left out."""
    y, low, high = (float(row[name]) / size for name in (what, f"{what}_low", f"{what}_high"))
    if not 0 < low <= y <= high:
        low = high = y
    return {"series": row["series"], "x": row["x"], "y": y, "low": low, "high": high}


def _panel(along: ComparisonLine, names: Sequence[str], rows: Sequence[Row], *, title: str) -> "alt.LayerChart":
    import altair as alt

    shown = legend(3) if along.axis else None  # without an axis of lengths the arms are named on the other axis
    colour, shape = coded("series", (names, _cycled(PALETTE, names), _cycled(SHAPES, names)), shown)
    ends = [float(row[end]) for row in rows for end in ("low", "high")] or [1.0]
    low, high = domain_around([*ends, 1.0] if title.startswith("time /") else ends)
    base = alt.Chart(alt.InlineData(values=list(rows))).encode(color=colour)
    if along.axis:
        base = base.encode(x=size_x(map(along.length, along.sized), along.axis))
        layers = line_layers(base, logarithmic_y("y", title, (low, high)), title, shape)
        return alt.LayerChart(layer=layers, width=_PANEL_WIDTH, height=_PANEL_HEIGHT)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(values=ticks(low, high), format="~g" if low > 1e-3 else "~e")
    x = alt.X("y:Q", title=title, scale=scale, axis=axis)
    base = base.encode(
        y=alt.Y(
            "series:N", title=None, sort=list(names), scale=alt.Scale(domain=list(names)), axis=alt.Axis(labelLimit=0)
        )
    )
    bars = base.mark_rule(strokeWidth=1.5).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    layers = [bars, base.mark_point(filled=True, size=70, opacity=1).encode(x=x, shape=shape)]
    return alt.LayerChart(layer=layers, width=_PANEL_WIDTH, height=_ROW_HEIGHT * len(names))


def _cycled(values: Sequence[str], names: Sequence[str]) -> list[str]:
    return [values[number % len(values)] for number in range(len(names))]


def _lines(along: ComparisonLine) -> "alt.LayerChart":
    """The line at 1, and one at every crossover length."""
    import altair as alt

    one = alt.Chart(alt.InlineData(values=[{"one": 1.0}])).mark_rule(
        strokeDash=[5, 4], strokeWidth=1.5, color="#333333"
    )
    if not along.axis:
        return alt.LayerChart(layer=[one.encode(x="one:Q")])
    found = [{"x": change.length} for changes in overtakings(along).values() for change in changes]
    layers = [one.encode(y="one:Q")]
    if found:
        crossed = alt.Chart(alt.InlineData(values=found)).mark_rule(strokeDash=[2, 3], color="#777777")
        layers.append(crossed.encode(x="x:Q"))
    return alt.LayerChart(layer=layers)
