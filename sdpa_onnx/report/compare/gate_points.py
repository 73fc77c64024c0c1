"""The ratios of a comparison for the chart of ratios: HEAD over BASE in every case, regressions first."""

from collections.abc import Sequence

from sdpa_onnx.core.records.gate_records import GateRecord, GateVerdict
from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.report.compare.gate_report import GateReport, by_verdict, case_of, usual_of, verdict_label
from sdpa_onnx.report.text.labels import join_words
from sdpa_onnx.report.text.number_text import NOT_KNOWN, confidence_text, count, duration, ratio_text
from sdpa_onnx.report.timing.ratio_points import RatioCase, RatioPanel, RatioPicture, RatioPoint

__all__ = ["gate_ratios"]

# Greatest number of cases in the picture; the table has all.
_MOST_CASES = 40
_UNDECIDED = frozenset({GateVerdict.UNDECIDED, GateVerdict.NOT_COMPARABLE})


def gate_ratios(report: GateReport) -> RatioPicture | None:
    """Gather every ratio of HEAD to BASE; None without one."""
    usual = usual_of(report)
    found: dict[str, list[RatioPoint]] = {}
    drawn = [row for row in by_verdict(report.rows) if row.ratio is not None and row.ratio > 0]
    for row in drawn:
        found.setdefault(case_of(row, usual) or row.target or "all", []).append(_point(report, row))
    if not found:
        return None
    cases = [RatioCase(label=label, points=tuple(points)) for label, points in found.items()]
    panel = RatioPanel(title="", cases=tuple(cases[:_MOST_CASES]), left_out=max(0, len(cases) - _MOST_CASES))
    return RatioPicture(
        panels=(panel,),
        fixed=" ".join([f"Unless named: {usual.words}.", *_intervals(drawn)] if usual.words else _intervals(drawn)),
        baseline="BASE",
        series=tuple(dict.fromkeys(point.series for case in panel.cases for point in case.points)),
    )


def _intervals(rows: Sequence[GateRecord]) -> list[str]:
    confidences = sorted({confidence_text(row.confidence) for row in rows if row.confidence is not None})
    threads = sorted({row.threads for row in rows if row.threads is not None})
    return [
        *([f"Bars: {join_words(confidences)} intervals."] if confidences else []),
        *([f"{join_words([count(number, 'thread') for number in threads])}."] if threads else []),
    ]


def _point(report: GateReport, row: GateRecord) -> RatioPoint:
    ratio = known(row.ratio)
    low, high = (ratio if end is None or end <= 0 else end for end in (row.ratio_low, row.ratio_high))
    return RatioPoint(
        series=row.arm if row.arm not in ("", "HEAD") else row.runtime or "HEAD",
        ratio=ratio,
        low=min(low, ratio),
        high=max(high, ratio),
        is_decided=row.word not in _UNDECIDED,
        verdict=verdict_label(report, row),
        ratio_words=ratio_text(row.ratio, row.ratio_low, row.ratio_high),
        time_words=NOT_KNOWN if row.head_seconds is None else duration(row.head_seconds),
        baseline_words=NOT_KNOWN if row.base_seconds is None else duration(row.base_seconds),
    )
