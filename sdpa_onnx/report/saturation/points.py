"""The numbers behind the charts of saturation: the cells along each line, and their points; draws nothing."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import MeasuredValue, Record, SaturationRecord
from sdpa_onnx.core.saturation.measures import MeasureName
from sdpa_onnx.report.text.chart_choice import drawn_lines, not_drawn_words
from sdpa_onnx.report.text.chart_titles import ChartKind, ChartName
from sdpa_onnx.report.text.labels import CaseFactor, join_words
from sdpa_onnx.report.text.number_text import count

__all__ = ["PANELS", "Panel", "SaturationPoint", "SaturationSeries", "saturation_series"]

# Least number of values for a line. Twin: timing/slices.py.
_LEAST_VALUES = 3
# About 95 % of a normal spread, as the intervals of the other charts.
_BAR_ERRORS = 2.0
# The width of the paper's base model, drawn over length if it was measured (Vaswani et al. 2017, table 3).
_USUAL_HEAD_DIM = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One of the small multiples.

    Args:
        title: Quantity and unit.
        measure: Drawn with filled marks, with its prediction.
        second: Drawn with hollow marks, without a prediction; None if there is none.
        is_logarithmic: Whether the vertical axis is logarithmic; else it runs from 0 to 1.
    """

    title: str
    measure: MeasureName
    second: MeasureName | None = None
    is_logarithmic: bool = False


PANELS = (
    Panel(title="entropy of the weights / ln S", measure=MeasureName.ENTROPY_SHARE),
    Panel(title="share of rows with a weight > 0.99", measure=MeasureName.SATURATED_ROWS),
    Panel(title="norm of the softmax Jacobian, rms", measure=MeasureName.JACOBIAN_RMS, is_logarithmic=True),
    Panel(
        title="norm of dL/dq: rms, median hollow",
        measure=MeasureName.QUERY_GRADIENT_RMS,
        second=MeasureName.QUERY_GRADIENT_MEDIAN,
        is_logarithmic=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationPoint:
    """One mark: x is d_k or the length, low and high are two standard errors away, predicted is None if unknown."""

    rule: str
    x: int
    y: float
    low: float
    high: float
    predicted: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationSeries:
    """The data of one row of small multiples.

    Args:
        name: The chart.
        fixed: Sigma, the fixed factor, and how much was measured.
        rules: Scale rules that occur, in the order of ScaleRule.
        filled, hollow: Points by panel, in the order of PANELS.
        left_out: Points that a logarithmic axis cannot show.
    """

    name: ChartName
    fixed: str
    rules: tuple[str, ...]
    filled: tuple[tuple[SaturationPoint, ...], ...]
    hollow: tuple[tuple[SaturationPoint, ...], ...]
    left_out: int


def saturation_series(records: Sequence[Record]) -> Iterator[SaturationSeries]:
    """Gather the points of every chart that has a line: inputs and sigmas are never mixed."""
    cells = [record for record in records if isinstance(record, SaturationRecord) and record.measures]
    for kind in (ChartKind.SATURATION_OVER_HEAD_DIM, ChartKind.SATURATION_OVER_LENGTH):
        lines = _lines(cells, kind.axis)
        drawn = drawn_lines(lines, lambda line, axis=kind.axis: len(_values(line, axis)))  # type: ignore[misc]
        for line in drawn:
            yield _series(kind, line, len(lines) - len(drawn))


def _lines(cells: Sequence[SaturationRecord], axis: CaseFactor) -> list[list[SaturationRecord]]:
    """For each target the line of cells with the most values of the factor, if it has at least three."""
    gathered: dict[tuple[object, ...], list[SaturationRecord]] = {}
    for cell in cells:
        fixed = cell.kv_seq_len if axis is CaseFactor.HEAD_DIM else cell.head_dim
        gathered.setdefault((cell.target, cell.sigma, cell.dtype, fixed), []).append(cell)
    chosen: dict[str, list[SaturationRecord]] = {}
    for line in sorted(gathered.values(), key=lambda line: _rank(line, axis)):
        if len(_values(line, axis)) >= _LEAST_VALUES:
            chosen[line[0].target] = line
    return [sorted(line, key=lambda cell: _along(cell, axis)) for line in chosen.values()]


def _rank(line: Sequence[SaturationRecord], axis: CaseFactor) -> tuple[int, int, float]:
    """Sort key: most values, then most cells, then the longest row or the d_k nearest to the usual one."""
    first = line[0]
    usual = (
        known(first.kv_seq_len)
        if axis is CaseFactor.HEAD_DIM
        else -abs(math.log2(known(first.head_dim) / _USUAL_HEAD_DIM))
    )
    return len(_values(line, axis)), len(line), usual


def _values(line: Sequence[SaturationRecord], axis: CaseFactor) -> set[int]:
    return {_along(cell, axis) for cell in line}


def _along(cell: SaturationRecord, axis: CaseFactor) -> int:
    return known(cell.head_dim if axis is CaseFactor.HEAD_DIM else cell.kv_seq_len)


def _series(kind: ChartKind, line: Sequence[SaturationRecord], lines_left_out: int) -> SaturationSeries:
    rules = [rule.value for rule in (ScaleRule.NONE, ScaleRule.INVERSE_SQRT, ScaleRule.INVERSE)]
    filled = [_points(line, kind.axis, panel.measure) for panel in PANELS]
    hollow = [_points(line, kind.axis, panel.second) if panel.second else [] for panel in PANELS]
    drawn = [
        [_drawable(points, panel) for points, panel in zip(side, PANELS, strict=True)] for side in (filled, hollow)
    ]
    left_out = sum(map(len, (*filled, *hollow))) - sum(len(points) for side in drawn for points in side)
    return SaturationSeries(
        name=ChartName(kind=kind, target=line[0].target),
        fixed=", ".join([_fixed(line, kind.axis), *not_drawn_words(lines_left_out)]),
        rules=tuple(rule for rule in rules if any(cell.scale_rule == rule for cell in line)),
        filled=tuple(map(tuple, drawn[0])),
        hollow=tuple(map(tuple, drawn[1])),
        left_out=left_out,
    )


def _points(line: Sequence[SaturationRecord], axis: CaseFactor, name: MeasureName) -> list[SaturationPoint]:
    return [
        _point(cell.scale_rule, _along(cell, axis), cell.measures[name.value])
        for cell in line
        if name.value in cell.measures
    ]


def _point(rule: str, x: int, measure: MeasuredValue) -> SaturationPoint:
    half = _BAR_ERRORS * (measure.standard_error or 0.0)
    return SaturationPoint(
        rule=rule,
        x=x,
        y=measure.value,
        low=measure.value - half,
        high=measure.value + half,
        predicted=measure.predicted,
    )


def _drawable(points: Sequence[SaturationPoint], panel: Panel) -> list[SaturationPoint]:
    return [point for point in points if math.isfinite(point.y) and (point.y > 0 or not panel.is_logarithmic)]


def _fixed(line: Sequence[SaturationRecord], axis: CaseFactor) -> str:
    first = line[0]
    fixed = f"length {first.kv_seq_len}" if axis is CaseFactor.HEAD_DIM else f"d_k {first.head_dim}"
    amounts = sorted({(known(cell.rows), known(cell.draws)) for cell in line})
    measured = join_words([f"{count(rows, 'row')} from {count(draws, 'draw')}" for rows, draws in amounts])
    return f"sigma^2 {known(first.sigma) ** 2:.3g}, {fixed}, {first.dtype}, {measured} of the keys at each point"
