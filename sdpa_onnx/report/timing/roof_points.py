"""The numbers behind the chart of the roof: rates of all timings, and the highest rate of the machine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.attention.roofline import AttentionWork, Ceilings, roof_seconds
from sdpa_onnx.core.records.records import Outcome, Record, TimingRecord
from sdpa_onnx.report.text.labels import case_in_words, series_name, usual_factors
from sdpa_onnx.report.text.number_text import figures_per_second, median_text, share

__all__ = ["RoofPicture", "RoofPoint", "roof_picture"]

_GIGA = 1e9
# Points of the line of the roof.
_STEPS = 48
# Greatest number of dots; more hide each other.
_MOST_DOTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofPoint:
    """One timing: useful FLOP per exponential, useful GFLOP/s, and the texts of its tooltip."""

    series: str
    case: str
    x: float
    y: float
    rate_words: str
    share_words: str
    time_words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofPicture:
    """The timings below the roof.

    Args:
        line: The roof, as (FLOP per exponential, GFLOP/s).
        fixed: The two ceilings as text.
        left_out: Timings that are not drawn because there are too many.
    """

    points: tuple[RoofPoint, ...]
    line: tuple[tuple[float, float], ...]
    fixed: str
    left_out: int


def roof_picture(records: Sequence[Record], ceilings: Mapping[str, float]) -> RoofPicture | None:
    """Gather the timings whose work is counted; None without one, or if the ceilings are not known."""
    products, exps = ceilings.get("gemm_flops_per_second", 0.0), ceilings.get("exps_per_second", 0.0)
    usual = usual_factors(records)
    points = [
        RoofPoint(
            series=series_name(one),
            case=", ".join(dict.fromkeys(word for word in (one.target, case_in_words(one, usual)) if word)),
            x=one.useful_flops / one.exps,
            y=one.useful_flops / one.median_seconds / _GIGA,
            rate_words=figures_per_second(one.useful_flops / one.median_seconds, "FLOP/s"),
            share_words=share(one.roof_share),
            time_words=median_text(one.median_seconds, one.median_low, one.median_high),
        )
        for one in records
        if isinstance(one, TimingRecord) and one.outcome is Outcome.OK
        if one.useful_flops and one.exps and one.median_seconds
    ]
    if not points or products <= 0 or exps <= 0:
        return None
    return RoofPicture(
        points=tuple(points[:_MOST_DOTS]),
        line=_line([point.x for point in points], Ceilings(gemm_flops_per_second=products, exps_per_second=exps)),
        fixed=f"Matrix products {figures_per_second(products, 'FLOP/s')}, "
        f"exponentials {figures_per_second(exps, 'exp/s')}, measured in the same run.",
        left_out=max(0, len(points) - _MOST_DOTS),
    )


def _line(places: Sequence[float], ceilings: Ceilings) -> tuple[tuple[float, float], ...]:
    """The roof from the least to the greatest work per exponential; memory is not part of it."""
    low, high = min(places) / 1.3, max(places) * 1.3
    return tuple((x, _roof(x, ceilings)) for x in (low * (high / low) ** (step / _STEPS) for step in range(_STEPS + 1)))


def _roof(flops_per_exp: float, ceilings: Ceilings) -> float:
    exps = 10**9
    flops = math.ceil(flops_per_exp * exps)
    work = AttentionWork(useful_flops=flops, executed_flops=flops, exps=exps, bytes_moved=0)
    return flops / roof_seconds(work, ceilings) / _GIGA
