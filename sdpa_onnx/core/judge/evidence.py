"""Collects the evidence for a verdict block by block: errors relative to the bound and in units of sigma.

Decides no verdict. Relative error, ulp and cosine are collected for information only.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.judge.block_bound import BlockBound
from sdpa_onnx.core.judge.directions import RowScores, rounded_scale, score_rows
from sdpa_onnx.core.judge.expectation import Expectation
from sdpa_onnx.core.judge.nan_places import NanPlaces
from sdpa_onnx.core.judge.sigma import BlockSigma

__all__ = ["LARGEST_RATIO", "Evidence", "gather"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]
Place = tuple[int, int, NDArray[np.int64]]

# The ratio of an error where the bound is 0, because JSON has no infinity.
LARGEST_RATIO = 1e300
# Larger deviations are clipped to this one, so that sums of squares stay finite.
_LARGEST_DEVIATION = 1e100


@dataclass(slots=True)
class Evidence:
    """Evidence accumulated over the blocks; short-lived.

    Args:
        square_sum: Sum of all squared deviations.
        squares: Per (batch, head): sum of squared deviations, without the effect of a rounded scale, and their number.
        swallowed: Number of finite elements where a NaN in the inputs must appear.
        nan_rows: Number of rows in which the graph defines NaN because no key is visible.
        number_rows: Number of those in which a number was returned.
        rows: Per block: the score of each direction.
        statistical_rows: Rows judged statistically; doubtful_rows: rows for which sigma is not valid;
            regular_rows: those of them whose inputs are constant or evenly spaced.
    """

    max_abs_error: float = 0.0
    max_bound_ratio: float = 0.0
    worst: tuple[int, int, int, int] | None = None
    worst_text: str = ""
    max_relative_error: float = 0.0
    max_ulp_error: float = 0.0
    dot: float = 0.0
    actual_square: float = 0.0
    oracle_square: float = 0.0
    mismatched: int = 0
    not_finite: int = 0
    first_not_finite: tuple[int, int, int, int] | None = None
    swallowed: int = 0
    first_swallowed: tuple[int, int, int, int] | None = None
    nan_rows: int = 0
    number_rows: int = 0
    unexplained: int = 0
    excused_rows: int = 0
    total: int = 0
    judged: int = 0
    judged_rows: int = 0
    scale_error_proven: float = math.inf
    max_z: float = 0.0
    square_sum: float = 0.0
    squares: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)
    rows: list[RowScores] = field(default_factory=list)
    statistical_rows: int = 0
    doubtful_rows: int = 0
    regular_rows: int = 0

    @property
    def kappa(self) -> float:
        """Root mean square deviation, -1 if no element was judged statistically."""
        square_sum = sum(total for total, _ in self.squares.values())
        return math.sqrt(square_sum / self.deviations) if self.deviations else -1.0

    @property
    def head_kappa(self) -> float:
        """Largest root mean square deviation of a head, -1 if there is none."""
        return max((math.sqrt(total / count) for total, count in self.squares.values() if count), default=-1.0)

    @property
    def deviations(self) -> int:
        """Number of elements judged statistically."""
        return sum(count for _, count in self.squares.values())


def gather(expectation: Expectation, output: Array) -> Evidence:
    """Compare an output in BNSH with its expectation."""
    evidence = Evidence()
    deviations = []
    nans = expectation.nans or (None,) * len(expectation.blocks)
    for place, bound, sigma, places in zip(
        expectation.blocks, expectation.bounds, expectation.sigmas, nans, strict=True
    ):
        values = _values(output[place])
        if places is not None:
            _count_swallowed(evidence, place, values, places)
            evidence.nan_rows += int(np.count_nonzero(places.open))
            evidence.judged += int(np.count_nonzero(places.open)) * values.shape[1]  # NaN is right there
            evidence.number_rows += int(np.count_nonzero(places.open & ~np.isnan(values).all(1)))
            values = np.where(places.may & np.isnan(values) | places.open[:, None], bound.output, values)
        _compare(evidence, place, bound, values, expectation.precision, output.dtype)
        deviations.append(_deviations(bound, sigma, values))
        evidence.statistical_rows += int(sigma.judged.sum())
        evidence.doubtful_rows += int((~sigma.hidden & ~sigma.judged).sum())
        evidence.regular_rows += int((~sigma.hidden & sigma.regular).sum())
    _weigh(evidence, expectation, deviations)
    if expectation.rows is not None:
        _check_unsampled(evidence, output, expectation)
    return evidence


def _values(actual: Array) -> Float64:
    """Convert an output to float64; unwritten memory may contain signalling NaN, for which the cast would warn."""
    with np.errstate(invalid="ignore"):
        return actual.astype(np.float64)


def _count_swallowed(evidence: Evidence, place: Place, values: Float64, places: NanPlaces) -> None:
    swallowed = places.must & np.isfinite(values)
    evidence.swallowed += int(np.count_nonzero(swallowed))
    if evidence.first_swallowed is None and swallowed.any():
        evidence.first_swallowed = _element(place, int(swallowed.argmax()), swallowed.shape)


def _deviations(bound: BlockBound, sigma: BlockSigma, values: Float64) -> Float64:
    """Compute errors in units of sigma; 0 for exact elements (sigma 0) and for elements that are not finite."""
    usable = (sigma.sigma > 0.0) & np.isfinite(values)
    error = np.where(usable, values, bound.output) - bound.output
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.minimum(np.abs(error) / np.where(usable, sigma.sigma, 1.0), _LARGEST_DEVIATION)
    return np.copysign(np.where(usable, size, 0.0), error)


def _weigh(evidence: Evidence, expectation: Expectation, deviations: list[Float64]) -> None:
    """Sum the deviations by direction and by head; by head without the effect of a legitimately rounded scale.

    A scale rounded to the format of the prescaled operands shifts all logits of
    a head together. Sigma assumes independent rounding errors, so it would find these
    errors too large if value correlates with key.
    """
    for directions, deviation in zip(expectation.directions, deviations, strict=True):
        evidence.rows.append(score_rows(directions, deviation))
        evidence.square_sum += float(np.vdot(deviation, deviation))
    error = rounded_scale(evidence.rows, evidence.square_sum, expectation.precision)
    for place, bound, sigma, deviation in zip(
        expectation.blocks, expectation.bounds, expectation.sigmas, deviations, strict=True
    ):
        rest = deviation
        if error:
            spread = np.where(sigma.sigma > 0.0, sigma.sigma, 1.0)
            rest = np.where(deviation != 0.0, deviation - error * bound.per_scale / spread, 0.0)
        total, count = evidence.squares.get(place[:2], (0.0, 0))
        count += int(np.count_nonzero(sigma.sigma))
        evidence.squares[place[:2]] = (total + float(np.vdot(rest, rest)), count)
        evidence.max_z = max(evidence.max_z, float(np.abs(rest).max(initial=0.0)))


def _check_unsampled(evidence: Evidence, output: Array, expectation: Expectation) -> None:
    """Count NaN and infinity in queries that were not sampled; these are wrong whatever the bound is."""
    unsampled = np.ones(output.shape[2], dtype=bool)
    unsampled[expectation.rows] = False
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(output.astype(np.float32))
    bad = ~finite & unsampled[None, None, :, None]
    if expectation.empty is not None and bad.any():
        bad &= ~expectation.empty()[..., None]
    count = int(np.count_nonzero(bad))
    if not count:
        return
    if expectation.may_overflow:
        evidence.unexplained += count
        return
    evidence.not_finite += count
    if evidence.first_not_finite is None:
        batch, head, query, column = np.unravel_index(int(bad.argmax()), bad.shape)
        evidence.first_not_finite = (int(batch), int(head), int(query), int(column))


def _compare(
    evidence: Evidence,
    place: Place,
    bound: BlockBound,
    values: Float64,
    precision: Precision,
    dtype: np.dtype[np.generic],
) -> None:
    """Add one block's comparison with the oracle and its bound."""
    finite = np.isfinite(values) | ~np.isfinite(bound.output)
    too_large = np.abs(bound.output) > precision.output.largest * (1.0 - precision.output.unit_roundoff)
    excused = ((bound.overflows[:, None] | too_large) & ~finite) | ~np.isfinite(bound.bound)
    error = np.where(finite, np.abs(np.where(np.isfinite(values), values, 0.0) - bound.output), 0.0)
    error = np.where(np.isfinite(error), error, 0.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ratio = np.where(finite & ~excused & (error > 0.0), np.minimum(error / bound.bound, LARGEST_RATIO), 0.0)
    evidence.judged_rows += values.shape[0]
    evidence.total += values.size
    evidence.judged += int(np.count_nonzero(np.isfinite(bound.output) & ~excused))
    evidence.excused_rows += int(excused.any(1).sum())
    unexcused = ~finite & ~excused
    evidence.not_finite += int(np.count_nonzero(unexcused))
    if evidence.first_not_finite is None and unexcused.any():
        evidence.first_not_finite = _element(place, int(unexcused.argmax()), unexcused.shape)
    evidence.mismatched += int(np.count_nonzero(ratio > 1.0))
    _add_similarity(evidence, values, bound.output, error, dtype)
    slope = np.abs(bound.per_scale)
    if (slope > 0.0).any():
        with np.errstate(over="ignore"):
            provable = (bound.bound + error)[slope > 0.0] / slope[slope > 0.0]
        evidence.scale_error_proven = min(evidence.scale_error_proven, float(provable.min()))
    if ratio.size and float(ratio.max()) > evidence.max_bound_ratio:
        row, column = np.unravel_index(int(ratio.argmax()), ratio.shape)
        evidence.max_bound_ratio = float(ratio[row, column])
        evidence.worst = _element(place, int(ratio.argmax()), ratio.shape)
        evidence.worst_text = (
            f"got {values[row, column]:.6g}, expected {bound.output[row, column]:.6g} +- {bound.bound[row, column]:.2g}"
        )


def _element(place: Place, position: int, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(batch, head, query, column) of an element of a block."""
    row, column = divmod(position, shape[1])
    return (place[0], place[1], int(place[2][row]), column)


def _add_similarity(
    evidence: Evidence, values: Float64, oracle: Float64, error: Float64, dtype: np.dtype[np.generic]
) -> None:
    """Update the figures that other tools use for their verdict; here they only inform."""
    if not error.size:
        return
    with np.errstate(over="ignore", invalid="ignore"):  # squares of huge values overflow; these figures only inform
        evidence.max_abs_error = max(evidence.max_abs_error, float(error.max()))
        oracle = np.where(np.isfinite(oracle), oracle, 0.0)
        nonzero = oracle != 0.0
        if nonzero.any():
            relative = error[nonzero] / np.abs(oracle[nonzero])
            evidence.max_relative_error = max(evidence.max_relative_error, float(relative.max()))
        evidence.max_ulp_error = max(evidence.max_ulp_error, float((error / _spacing(oracle, dtype)).max()))
        known = np.where(np.isfinite(values), values, 0.0)
        evidence.dot += float((known * oracle).sum())
        evidence.actual_square += float((known * known).sum())
        evidence.oracle_square += float((oracle * oracle).sum())


def _spacing(oracle: Float64, dtype: np.dtype[np.generic]) -> Float64:
    """Distance between neighbouring floats of the output format at the oracle (one ulp)."""
    import ml_dtypes

    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    exponent = np.floor(np.log2(np.maximum(np.abs(oracle), float(info.smallest_normal))))
    spacing: Float64 = np.exp2(exponent) * float(info.eps)
    return spacing
