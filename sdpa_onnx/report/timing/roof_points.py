"""The numbers behind the chart of the roof: the share of every timing, a row per case; draws nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.report.text.labels import series_name, usual_factors
from sdpa_onnx.report.text.number_text import figures_per_second, median_text, share
from sdpa_onnx.report.timing.case_names import case_names
from sdpa_onnx.report.timing.comparisons import comparisons

__all__ = ["RoofBar", "RoofCase", "RoofPicture", "roof_picture"]

# Greatest number of rows; more do not fit on a screen.
_MOST_CASES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofBar:
    """One timing: its share of the roof (1 = all of it), and the texts of its tooltip."""

    series: str
    share: float
    rate_words: str
    share_words: str
    bound_by: str
    time_words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofCase:
    """One row: a case with its name and its stable id, and its arms."""

    label: str
    case_id: str
    bars: tuple[RoofBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofPicture:
    """The timings, case by case.

    Args:
        cases: The rows.
        fixed: What no label repeats, and the two ceilings, as text.
        left_out: Cases that are not drawn because there are too many.
    """

    cases: tuple[RoofCase, ...]
    fixed: str
    left_out: int


def roof_picture(records: Sequence[Record], ceilings: Mapping[str, float]) -> RoofPicture | None:
    """Gather the timings whose work is counted; None without one, or if the ceilings are not known."""
    products, exps = ceilings.get("gemm_flops_per_second", 0.0), ceilings.get("exps_per_second", 0.0)
    timed = comparisons(records)
    counted = [one for one in timed if any(map(_is_counted, one.arms))]
    if not counted or products <= 0 or exps <= 0:
        return None
    names = case_names(timed, usual_factors(records))
    cases = [
        RoofCase(
            label=names.of([one.first]),
            case_id=one.first.case,
            bars=tuple(map(_bar, filter(_is_counted, one.arms))),
        )
        for one in counted[:_MOST_CASES]
    ]
    ceiling = (
        f"100 %: matrix products at {figures_per_second(products, 'FLOP/s')} and exponentials at "
        f"{figures_per_second(exps, 'exp/s')}, measured in the same run."
    )
    fixed = f"{names.unless_stated(counted)} {ceiling}"
    return RoofPicture(cases=tuple(cases), fixed=fixed, left_out=len(counted) - len(cases))


def _is_counted(arm: TimingRecord) -> bool:
    return bool(arm.roof_share and arm.useful_flops)


def _bar(arm: TimingRecord) -> RoofBar:
    return RoofBar(
        series=series_name(arm),
        share=known(arm.roof_share),
        rate_words=figures_per_second(known(arm.useful_flops) / known(arm.median_seconds), "FLOP/s"),
        share_words=share(arm.roof_share),
        bound_by=arm.bound_by,
        time_words=median_text(arm.median_seconds, arm.median_low, arm.median_high),
    )
