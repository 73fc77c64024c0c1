"""Names, titles and explanations of the charts; separate from drawing, so that text reports need no altair."""

import re
from dataclasses import dataclass
from enum import StrEnum

from sdpa_onnx.report.text.labels import CaseFactor

__all__ = ["ChartKind", "ChartName", "chart_title", "how_to_read", "is_saturation_chart"]


class ChartKind(StrEnum):
    """The quantity of a chart and the factor along its horizontal axis."""

    RATIOS = "ratios"
    TIME_OVER_LENGTH = "time-over-length"
    TIME_OVER_HEAD_DIM = "time-over-d_k"
    ERROR_OVER_HEAD_DIM = "error-over-d_k"
    SATURATION_OVER_HEAD_DIM = "saturation-over-d_k"
    SATURATION_OVER_LENGTH = "saturation-over-length"
    ROOF = "roof"

    @property
    def axis(self) -> CaseFactor:
        """The factor along the horizontal axis; of a chart over a size."""
        is_length = self in (ChartKind.TIME_OVER_LENGTH, ChartKind.SATURATION_OVER_LENGTH)
        return CaseFactor.LENGTH if is_length else CaseFactor.HEAD_DIM


_TITLES = {
    ChartKind.RATIOS: "Time of every arm over the baseline",
    ChartKind.ROOF: "Share of the roof of this machine",
    ChartKind.TIME_OVER_LENGTH: "Time of a call over length",
    ChartKind.TIME_OVER_HEAD_DIM: "Time of a call over d_k",
    ChartKind.ERROR_OVER_HEAD_DIM: "Error over d_k",
    ChartKind.SATURATION_OVER_HEAD_DIM: "Saturation over d_k",
    ChartKind.SATURATION_OVER_LENGTH: "Saturation over length",
}
# Confidence of the interval of a median, and of ratios in records of earlier versions.
_USUAL_CONFIDENCE = "95 %"
_TIME_READING = (
    "First the median time of one call, both axes logarithmic, then the same as a ratio to the baseline; below the "
    "line at 1 is faster. The bars are {bars}: if one contains 1, nothing is claimed."
)
_SATURATION_READING = (
    "In this order: entropy of the weights over its largest value ln S, 1 if all weights are equal; share of rows "
    "whose largest weight is above 0.99; root mean square norm of the softmax Jacobian; norm of the gradient to the "
    "query for an upstream gradient of norm 1. Points are measured, with bars of two standard errors; solid lines join "
    "exact predictions. Hollow points are the median row, which has no prediction; dashed lines only join them. The "
    "Jacobian alone does not show the gradient: dL/dq contains the scale too, and rms and median differ if a few rows "
    "have nearly all of it."
)
_READINGS = {
    ChartKind.RATIOS: "Each dot is the time of one arm over that of the baseline in the same case: left of the line at "
    "1 is faster. The bars are {bars}: if one crosses the line, nothing is claimed.",
    ChartKind.ROOF: "Each bar is the useful work of one arm per second, as a share of what the measured matrix "
    "products and exponentials of this machine allow. The rest is lost elsewhere; a bar beyond 100 % means that the "
    "measurement of the roof was disturbed. Pairs that a mask excludes are not counted as work.",
    ChartKind.TIME_OVER_LENGTH: _TIME_READING,
    ChartKind.TIME_OVER_HEAD_DIM: _TIME_READING,
    ChartKind.ERROR_OVER_HEAD_DIM: "First the largest error over its own proven bound; a point above the line at 1 "
    "would prove a fault. Then the largest absolute error against the float64 oracle. Each point is the "
    "worst of all inputs at that d_k.",
    ChartKind.SATURATION_OVER_HEAD_DIM: _SATURATION_READING,
    ChartKind.SATURATION_OVER_LENGTH: _SATURATION_READING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartName:
    """A chart of one target; as a string it is the file name without extension."""

    kind: ChartKind
    target: str

    def __str__(self) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", self.target.lower()).strip("-")
        return f"{self.kind}-{slug}" if slug else str(self.kind)


def chart_title(name: str) -> str:
    """The title of a chart by its file name."""
    kind = _kind(name)
    target = name.removeprefix(kind).strip("-")
    return f"{_TITLES[kind]}: {target}" if target else _TITLES[kind]


def how_to_read(name: str, *, ratio_confidence: str = "") -> str:
    """How to read a chart, one or two sentences.

    Args:
        ratio_confidence: Confidence of the intervals of its ratios, as text; "" for the usual one.
    """
    is_usual = ratio_confidence in ("", _USUAL_CONFIDENCE)
    bars = f"{_USUAL_CONFIDENCE} intervals"
    if not is_usual and _kind(name) is ChartKind.RATIOS:
        bars = f"{ratio_confidence} intervals"
    elif not is_usual:
        bars = f"intervals, {_USUAL_CONFIDENCE} of times and {ratio_confidence} of ratios"
    return _READINGS[_kind(name)].replace("{bars}", bars)


def is_saturation_chart(name: str) -> bool:
    """Whether a chart belongs to the section on saturation."""
    return _kind(name) in (ChartKind.SATURATION_OVER_HEAD_DIM, ChartKind.SATURATION_OVER_LENGTH)


def _kind(name: str) -> ChartKind:
    return next(kind for kind in ChartKind if name.startswith(kind))
