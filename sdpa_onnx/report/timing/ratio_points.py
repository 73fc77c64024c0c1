"""The numbers behind the chart of all ratios: every case with a time, causal and not; draws nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.records import AgreementRecord, Record, TimingRecord
from sdpa_onnx.report.text.labels import (
    join_words,
    series_name,
    usual_factors,
)
from sdpa_onnx.report.text.number_text import count, median_text, ratio_text
from sdpa_onnx.report.timing.case_names import CaseNames, case_names
from sdpa_onnx.report.timing.comparisons import RecordedComparison, comparisons
from sdpa_onnx.report.timing.verdict_text import confidences, verdict_cell

__all__ = [
    "RatioCase",
    "RatioPanel",
    "RatioPicture",
    "RatioPoint",
    "causal_targets",
    "ratio_picture",
]

# Greatest number of cases in one panel. More do not fit on a screen; the cases with the largest effects are kept.
_MOST_CASES = 30
_CAUSAL = "causal"


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioPoint:
    """One arm of one case: its time over that of the baseline, and the texts of its tooltip."""

    series: str
    ratio: float
    low: float
    high: float
    is_decided: bool
    verdict: str
    ratio_words: str
    time_words: str
    baseline_words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioCase:
    """One row of the picture: a case with its name and its stable id, and its arms other than the baseline."""

    label: str
    case_id: str = ""
    points: tuple[RatioPoint, ...]

    @property
    def effect(self) -> float:
        """The largest |log ratio| of its arms."""
        return max(abs(math.log(point.ratio)) for point in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioPanel:
    """The causal cases, or all others; left_out: cases that are not drawn because there are too many."""

    title: str
    cases: tuple[RatioCase, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioPicture:
    """All ratios of a run.

    Args:
        fixed: The factors that a case does not name, and the intervals, as text.
        baseline: What the ratios refer to; several baselines are joined.
        series: Every arm that is drawn.
    """

    panels: tuple[RatioPanel, ...]
    fixed: str
    baseline: str
    series: tuple[str, ...]


def ratio_picture(records: Sequence[Record]) -> RatioPicture | None:
    """Gather every ratio that has an interval; None without one. Noisy ratios are left out, and counted."""
    timed = comparisons(records)
    found = [one for one in timed if not one.is_noisy and any(map(_can_be_drawn, one.contenders))]
    if not found:
        return None
    noisy = sum(len(one.contenders) for one in timed if one.is_noisy)
    names = case_names(timed, usual_factors(records))
    causal = causal_targets(records)
    sides: dict[bool, list[RatioCase]] = {False: [], True: []}
    for one in found:
        sides[_is_causal(one.first, causal)].append(_case(one, names))
    titles = {False: "not causal", True: _CAUSAL}
    panels = tuple(_panel(titles[side], cases) for side, cases in sides.items() if cases)
    return RatioPicture(
        panels=panels,
        fixed=f"{names.unless_stated(found)} Bars: {join_words(confidences(found))} intervals."
        + (f" {count(noisy, 'noisy ratio')} not drawn." if noisy else ""),
        baseline=join_words(sorted({one.first.baseline for one in found})),
        series=tuple(dict.fromkeys(point.series for panel in panels for case in panel.cases for point in case.points)),
    )


def _can_be_drawn(arm: TimingRecord) -> bool:
    """Whether a logarithmic axis can show the ratio."""
    return bool(arm.ratio and arm.ratio > 0 and math.isfinite(arm.ratio))


def causal_targets(records: Sequence[Record]) -> frozenset[str]:
    """Modules with a causal attention: their timings have no spec, but the checks of their attentions do."""
    checks = [record for record in records if isinstance(record, AgreementRecord) and record.spec is not None]
    return frozenset(check.target for check in checks if check.spec and check.spec.is_causal)


def _is_causal(record: TimingRecord, targets: frozenset[str]) -> bool:
    return record.spec.is_causal if record.spec is not None else record.target in targets


def _case(one: RecordedComparison, names: CaseNames) -> RatioCase:
    points = tuple(_point(one, arm) for arm in one.contenders if _can_be_drawn(arm))
    return RatioCase(label=names.of([one.first]), case_id=one.first.case, points=points)


def _point(one: RecordedComparison, arm: TimingRecord) -> RatioPoint:
    judged = one.judged(arm)
    ratio, low, high = judged.ratio.value, judged.ratio.low, judged.ratio.high
    if not 0 < low <= ratio <= high < math.inf:
        low = high = ratio
    baselines = [other for other in one.arms if other.arm == other.baseline]
    return RatioPoint(
        series=series_name(arm),
        ratio=ratio,
        low=low,
        high=high,
        is_decided=judged.proven is not None,
        verdict=verdict_cell(judged),
        ratio_words=ratio_text(arm.ratio, arm.ratio_low, arm.ratio_high),
        time_words=median_text(arm.median_seconds, arm.median_low, arm.median_high),
        baseline_words=", ".join(
            median_text(base.median_seconds, base.median_low, base.median_high) for base in baselines
        ),
    )


def _panel(title: str, cases: Sequence[RatioCase]) -> RatioPanel:
    kept = {id(case) for case in sorted(cases, key=lambda case: -case.effect)[:_MOST_CASES]}
    shown = tuple(case for case in cases if id(case) in kept)
    return RatioPanel(title=title, cases=shown, left_out=len(cases) - len(shown))
