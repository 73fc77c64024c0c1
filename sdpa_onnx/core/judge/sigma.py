"""The statistical spread of right results: sigma of every element, and the rows that it holds for.

Roundings count as independent, of mean zero. Matrix products only; what decides by sigma is the judge's.
Roundings of constant or evenly spaced inputs share a sign, so rows of such inputs are left to the bound.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import FloatFormat, Precision
from sdpa_onnx.core.attention.stages import Stages
from sdpa_onnx.core.judge.bounds import BlockBound

__all__ = ["ROUNDING_VARIANCE", "BlockSigma", "sigma_of"]

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]

# Mean square of a relative rounding error in units of u^2, for log-uniform significands: (1/3)(3/8)/ln 2 (METHOD A.4).
ROUNDING_VARIANCE = 0.18
# Partial sums of this many parts stand for all partial sums of a sum in order (METHOD A.4).
_PARTS = 8
# exp's error as a multiple of the unit roundoff, squared; a library's exp is off by one or two (METHOD A.4).
_EXP_SQUARE = 4.0
# A loss by underflow is spread over [0, bound's half] (METHOD A.4: 0.3 of its square, of a bound half as large).
_UNDERFLOW_VARIANCE = 0.3 / 4.0
# A row is judged statistically if no key that matters has a logit less certain than this (METHOD A.4).
_LARGEST_LOGIT_SIGMA = 0.25
_MATTERS = 8.0
# Neighbours this close to a straight line, as a share of the median size, are evenly spaced; see `_evenly_spaced`.
_STRAIGHT = 0.02
# Weights that differ by less than this share are equal: then every term of the second product rounds alike.
_EQUAL_WEIGHTS = 1e-4
_FLOAT64_NOISE = 4.0 * 2.0**-53
# So many entries of a vector tell whether it is regular; sums of fewer terms than the least gather no bias.
_LOOKED_AT = 64
_LEAST_TERMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSigma:
    """Spread of one block of queries.

    Args:
        sigma: (rows, v_head_dim), standard deviation of a right result around the oracle; 0 where it is exact.
        judged: (rows,), True where sigma may decide.
        regular: (rows,), True where it may not because all terms of a sum are alike.
        hidden: (rows,), True where no key is visible: the output is exactly zero.
    """

    sigma: Float64
    judged: NDArray[np.bool_]
    regular: NDArray[np.bool_]
    hidden: NDArray[np.bool_]


def sigma_of(stages: Stages, bound: BlockBound, precision: Precision) -> BlockSigma:
    """Compute the spread of one block.

        sigma_ic^2 = sum_j w_ij^2 Var d_ij (v_jc - o_c)^2
                   + K [ u_sum^2 (sum of squared partial sums + sum_j w_ij^2 v_jc^2 + n_i / 3 o_c^2)
                         + (4 u_softmax^2 + u_output^2) o_c^2 + 2 u_operand^2 sum_j w_ij^2 v_jc^2 ]
                   + underflow

    with K = 0.18 and Var d_ij the variance of a computed logit. The scale itself,
    rounded, is one error in all logits alike: the judge takes it off, see `evidence.py`.

    Args:
        stages: The block.
        bound: Its bound.
        precision: The declared arithmetic.

    Source: METHOD A.4.
    """
    # Huge inputs overflow here to rows that are not judged statistically; tiny ones lose nothing that counts.
    with np.errstate(over="ignore", invalid="ignore"):
        logit_variance = _logit_variance(stages, precision)
        judged = _certain_rows(stages, logit_variance, precision)
        regular = _regular_rows(stages)
        hidden: NDArray[np.bool_] = ~np.logical_or.reduce(stages.visible, axis=1)
        judged &= ~regular & ~bound.overflows & ~hidden
        value, largest = _normalised(stages)
        output = stages.output / largest
        variance = _from_logits(stages, logit_variance, value, output) * precision.softmax.unit_roundoff**2
        variance += _from_later_roundings(stages, value, output, precision)
        variance *= ROUNDING_VARIANCE
        variance += _UNDERFLOW_VARIANCE * (bound.underflow / largest) ** 2
        sigma = largest * np.sqrt(variance)
    judged &= np.isfinite(sigma).all(1)
    sigma[~judged] = 0.0
    return BlockSigma(sigma=sigma, judged=judged, regular=regular, hidden=hidden)


def _square(format_: FloatFormat | None) -> float:
    return 0.0 if format_ is None else format_.unit_roundoff**2


def _logit_variance(stages: Stages, precision: Precision) -> Float32:
    """Variance of a computed logit in units of K u_softmax^2: (rows, keys)."""
    block = stages.block
    unit = precision.softmax.unit_roundoff**2
    summed, stored = _square(precision.score_sum) / unit, _square(precision.scores) / unit
    rounded = 2.0 * (_square(precision.operand) + _square(precision.prescaled)) / unit
    query, query_size = _rows_to_one(block.query)
    key, key_size = _rows_to_one(np.where(stages.seen[:, None], block.key, 0.0))
    factor = (abs(block.scale) * query_size) ** 2
    terms = (query * query) @ (key * key).T
    variance = _partial_squares(query, key.T) * np.float32(summed)
    variance += terms * np.float32(summed * (1.0 + block.query.shape[1] / (6.0 * _PARTS)) + rounded)
    variance *= factor.astype(np.float32)
    variance *= (key_size.astype(np.float32) ** 2).T
    scores = stages.scores.astype(np.float32)
    variance += np.float32(2.0 + stored) * scores * scores
    if stages.slope is not None:
        variance *= (stages.slope**2).astype(np.float32)
        capped = block.capped(stages.scores).astype(np.float32)
        variance += np.float32(2.0 + _EXP_SQUARE + 2.0 * stored) * capped * capped
    if (stages.visible & (block.bias != 0.0)).any():
        added = np.where(stages.visible, stages.logits, 0.0).astype(np.float32)
        variance += np.float32(1.0 + stored) * added * added
    below = stages.below.astype(np.float32)
    variance += below * below
    variance += np.float32(_EXP_SQUARE + _square(precision.weights) / unit)
    return variance


def _rows_to_one(array: Float64) -> tuple[Float32, Float64]:
    """Rows divided by their largest entry, in float32, and that entry: (rows, 1)."""
    size = np.abs(array).max(1, initial=0.0, keepdims=True)
    size = np.where(size > 0.0, size, 1.0)
    return (array / size).astype(np.float32), size


def _partial_squares(left: Float32, right: Float32) -> Float32:
    """Sum over l of the squared partial sums P_l of left @ right, from its values at a few l.

    Between two of them P is taken as straight: len (P^2 + P P' + P'^2) / 3.
    """
    inner = left.shape[1]
    edges = np.linspace(0, inner, min(_PARTS, inner) + 1).astype(int)
    before = np.zeros((left.shape[0], right.shape[1]), dtype=np.float32)
    total = np.zeros_like(before)
    for start, stop in itertools.pairwise(edges):
        step = left[:, start:stop] @ right[start:stop]
        # P^2 + P P' + P'^2 = 3 (P + step / 2)^2 + step^2 / 4
        middle = np.float32(0.5) * step
        middle += before
        before += step
        middle *= middle
        step *= step
        step *= np.float32(1.0 / 12.0)
        middle += step
        middle *= np.float32(stop - start)
        total += middle
    return total


def _certain_rows(stages: Stages, logit_variance: Float32, precision: Precision) -> NDArray[np.bool_]:
    """Rows whose logits are certain enough for a linear model of the softmax."""
    unit = ROUNDING_VARIANCE * precision.softmax.unit_roundoff**2
    if not logit_variance.size:
        return np.zeros(logit_variance.shape[0], dtype=bool)
    if float(logit_variance.max()) * unit <= _LARGEST_LOGIT_SIGMA**2:
        return np.ones(logit_variance.shape[0], dtype=bool)
    sigma = np.sqrt(logit_variance.astype(np.float64) * unit)
    certain = (sigma <= _LARGEST_LOGIT_SIGMA) | (stages.below >= _MATTERS + 6.0 * sigma) | ~stages.visible
    rows: NDArray[np.bool_] = np.logical_and.reduce(certain, axis=1)
    return rows


def _normalised(stages: Stages) -> tuple[Float64, float]:
    """Value divided by its largest visible entry, and that entry; keys that nobody sees are 0."""
    value = np.where(stages.seen[:, None], stages.block.value, 0.0)
    largest = float(np.abs(value).max(initial=0.0))
    if not 0.0 < largest < np.inf:
        return value, 1.0
    return value / largest, largest


def _from_logits(stages: Stages, logit_variance: Float32, value: Float64, output: Float64) -> Float64:
    """sum_j w_ij^2 Var d_ij (v_jc - o_c)^2, without a rows x keys x width pass."""
    factors = stages.weights * stages.weights
    factors *= logit_variance
    # A large common offset of value would cancel badly in the difference of squares; a small one does no harm, and
    # taking it off would spoil what is exact, such as values that are 0 but for one key.
    seen = value[stages.seen]
    middle = seen.mean(0) if seen.size else np.zeros(value.shape[1])
    middle = np.where(np.abs(middle) > seen.std(0), middle, 0.0) if seen.size else middle
    value, output = np.where(stages.seen[:, None], value - middle, 0.0), output - middle
    width = value.shape[1]
    sums = factors @ np.concatenate([value * value, value], axis=1)
    total = factors.sum(1, keepdims=True)
    squares = output * output * total
    variance: Float64 = sums[:, :width] - 2.0 * output * sums[:, width:] + squares
    # What the cancellation leaves is no smaller than its own rounding.
    noise: Float64 = _FLOAT64_NOISE * (sums[:, :width] + squares)
    return np.maximum(variance, 0.0) + noise


def _from_later_roundings(stages: Stages, value: Float64, output: Float64, precision: Precision) -> Float64:
    """Second product, row sum, division and output, in units of K."""
    weights, narrow = stages.weights.astype(np.float32), value.astype(np.float32)
    terms = ((weights * weights) @ (narrow * narrow)).astype(np.float64)
    keys = np.count_nonzero(weights, axis=1, keepdims=True)
    squares = output * output
    summed = _partial_squares(weights, narrow) + keys / (6.0 * _PARTS) * terms + terms + keys / 3.0 * squares
    variance = _square(precision.output_sum) * summed + 2.0 * _square(precision.operand) * terms
    variance += (4.0 * _square(precision.softmax) + _square(precision.output)) * squares
    return variance


def _regular_rows(stages: Stages) -> NDArray[np.bool_]:
    """Rows in which all terms of a sum are alike, so that their roundings share a sign."""
    block = stages.block
    count = np.count_nonzero(stages.visible, axis=1)
    equal = (stages.weights.max(1, initial=0.0) * count <= 1.0 + _EQUAL_WEIGHTS) & (count >= _LEAST_TERMS)
    seen = np.flatnonzero(stages.seen)[:_LOOKED_AT]
    value, key = block.value[seen].T, block.key[seen, :_LOOKED_AT]
    regular: NDArray[np.bool_] = np.zeros(count.shape, dtype=bool)
    if value.size and _evenly_spaced(value).mean() > 0.5:
        regular |= equal
    if key.size and _evenly_spaced(key).mean() > 0.5:
        regular |= _evenly_spaced(block.query[:, :_LOOKED_AT])
    return regular


def _evenly_spaced(rows: Float64) -> NDArray[np.bool_]:
    """Which rows are constant or evenly spaced over more than half of their entries; zeros do not count."""
    if rows.shape[1] < _LEAST_TERMS:
        return np.zeros(rows.shape[0], dtype=bool)
    middle = rows[:, 1:-1]
    bend = np.abs(rows[:, 2:] - 2.0 * middle + rows[:, :-2])
    straight = (bend <= _STRAIGHT * np.median(np.abs(rows), axis=1, keepdims=True)) & (middle != 0.0)
    even: NDArray[np.bool_] = 2 * straight.sum(1) > (middle != 0.0).sum(1)
    return even
