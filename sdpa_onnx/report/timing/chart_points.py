"""The numbers behind the charts: which records become which points; draws nothing."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Record, TimingRecord
from sdpa_onnx.report.text.chart_choice import not_drawn_words
from sdpa_onnx.report.text.chart_titles import ChartKind, ChartName
from sdpa_onnx.report.text.labels import (
    CaseFactor,
    CommonFactors,
    SizedRecord,
    case_in_words,
    clock_in_words,
    series_name,
    usual_factors,
)
from sdpa_onnx.report.text.number_text import count, time_unit
from sdpa_onnx.report.text.tally import bound_ratio
from sdpa_onnx.report.timing.comparisons import comparisons
from sdpa_onnx.report.timing.slices import Slice, axis_value, slices_along

__all__ = ["ChartPoint", "ChartSeries", "chart_series", "series_names"]

# Greatest number of values along the horizontal axis.
_MOST_VALUES = 40

R = TypeVar("R", bound=SizedRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """One mark: x is the factor, y the measure with its interval in the series' unit."""

    series: str
    x: int
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """The data of one chart.

    Args:
        name: The chart.
        fixed: The fixed factors, as text.
        absolute: Points in the unit `unit`; relative: ratios, drawn with a line at 1.
        baseline: The series to which the ratios refer; "" if none.
        unit: Unit of the absolute points; "" if they have none.
    """

    name: ChartName
    fixed: str
    absolute: tuple[ChartPoint, ...]
    relative: tuple[ChartPoint, ...]
    baseline: str = ""
    unit: str = ""


def chart_series(records: Sequence[Record]) -> Iterator[ChartSeries]:
    """Gather the points of every chart that has a line."""
    usual = usual_factors(records)
    timings = [record for record in records if isinstance(record, TimingRecord) and _is_timed(record)]
    checks = [record for record in records if isinstance(record, AgreementRecord) and _is_compared(record)]
    for kind in (ChartKind.TIME_OVER_LENGTH, ChartKind.TIME_OVER_HEAD_DIM):
        yield from (_timing_series(kind, _thinned(along), usual) for along in slices_along(timings, kind.axis))
    for along in slices_along(checks, CaseFactor.HEAD_DIM):
        drawn = _error_series(_thinned(along), usual)
        if drawn.relative:
            yield drawn


def series_names(records: Sequence[Record]) -> list[str]:
    """All series names, baselines first, so that a series has the same colour in all charts."""
    named = [record for record in records if isinstance(record, TimingRecord | AgreementRecord)]
    baselines = {record.baseline for record in named if isinstance(record, TimingRecord)}
    names = {series_name(record) for record in named} - {""}
    return sorted(names & baselines) + sorted(names - baselines)


def _thinned(along: Slice[R]) -> Slice[R]:
    """At most `_MOST_VALUES` values of the factor, spread evenly; with more, points hide each other."""
    values = along.values
    if len(values) <= _MOST_VALUES:
        return along
    step = (len(values) - 1) / (_MOST_VALUES - 1)
    kept = {values[round(place * step)] for place in range(_MOST_VALUES)}
    return replace(along, records=tuple(one for one in along.records if axis_value(one, along.axis) in kept))


def _is_timed(record: TimingRecord) -> bool:
    return record.outcome is Outcome.OK and record.median_seconds is not None


def _is_compared(record: AgreementRecord) -> bool:
    """Whether an error is known: not of a failure, and not of an output of a wrong shape."""
    return record.verdict is not None and record.max_bound_ratio is not None


def _timing_series(kind: ChartKind, along: Slice[TimingRecord], usual: CommonFactors) -> ChartSeries:
    longest = max(known(record.median_seconds) for record in along.records)
    shortest = min(known(record.median_seconds) for record in along.records)
    size, unit = time_unit(math.sqrt(longest * shortest))
    first = along.records[0]
    found = comparisons(along.records)
    ratios = [arm for one in found if not one.is_noisy for arm in one.contenders]
    left_out = sum(len(one.contenders) for one in found if one.is_noisy)
    note = [f"{count(left_out, 'noisy ratio')} not drawn"] if left_out else []
    return ChartSeries(
        name=ChartName(kind=kind, target=along.target),
        fixed=", ".join((_fixed(along, usual), count(first.threads, "thread"), clock_in_words(first.clock), *note)),
        absolute=tuple(_time_point(record, along.axis, size) for record in along.records),
        relative=tuple(_ratio_point(record, along.axis) for record in ratios),
        baseline=first.baseline,
        unit=unit,
    )


def _time_point(record: TimingRecord, axis: CaseFactor, size: float) -> ChartPoint:
    median = known(record.median_seconds)
    ends = _ends(median, known(record.median_low), known(record.median_high))
    y, low, high = (seconds / size for seconds in (median, *ends))
    return ChartPoint(series=series_name(record), x=axis_value(record, axis), y=y, low=low, high=high)


def _ratio_point(record: TimingRecord, axis: CaseFactor) -> ChartPoint:
    ratio = known(record.ratio)
    low, high = _ends(ratio, known(record.ratio_low), known(record.ratio_high))
    return ChartPoint(series=series_name(record), x=axis_value(record, axis), y=ratio, low=low, high=high)


def _ends(value: float, low: float, high: float) -> tuple[float, float]:
    """The interval, or the value twice if a logarithmic axis cannot show the interval or none was recorded."""
    return (low, high) if 0 < low <= value <= high < math.inf else (value, value)


def _error_series(along: Slice[AgreementRecord], usual: CommonFactors) -> ChartSeries:
    groups: dict[tuple[str, int], list[AgreementRecord]] = {}
    for record in along.records:
        groups.setdefault((series_name(record), axis_value(record, along.axis)), []).append(record)
    relative = [_error_point(key, max(bound_ratio(check) for check in checks)) for key, checks in groups.items()]
    absolute = [_error_point(key, max(one.max_abs_error or 0.0 for one in checks)) for key, checks in groups.items()]
    left_out = sum(not _has_logarithm(point) for point in relative)
    note = f"{count(left_out, 'point')} not drawn (error zero or not finite)" if left_out else ""
    return ChartSeries(
        name=ChartName(kind=ChartKind.ERROR_OVER_HEAD_DIM, target=along.target),
        fixed=", ".join(word for word in (_fixed(along, usual), note) if word),
        absolute=tuple(filter(_has_logarithm, absolute)),
        relative=tuple(filter(_has_logarithm, relative)),
    )


def _error_point(key: tuple[str, int], error: float) -> ChartPoint:
    name, x = key
    return ChartPoint(series=name, x=x, y=error, low=error, high=error)


def _has_logarithm(point: ChartPoint) -> bool:
    return 0 < point.y < math.inf


def _fixed(along: Slice[TimingRecord] | Slice[AgreementRecord], usual: CommonFactors) -> str:
    """The fixed factors as text, the usual ones too, because a chart is read without the report."""
    case = case_in_words(along.records[0], usual, without=[along.axis])
    return ", ".join(word for word in (case, usual.words, *not_drawn_words(along.left_out)) if word)
