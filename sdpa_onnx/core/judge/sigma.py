"""Estimates the standard deviation (sigma) of each element's rounding error, and the rows for which it is valid.

Assumes independent rounding errors of mean zero; uses matrix products only. Decides no verdict.
Rounding errors of constant or evenly spaced inputs share a sign, so such rows are checked by the bound only.
"""

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import FloatFormat, Precision
from sdpa_onnx.core.attention.stages import Stages
from sdpa_onnx.core.judge.block_bound import BlockBound

__all__ = ["ROUNDING_VARIANCE", "BlockSigma", "sigma_of"]

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]

# Mean square of a relative rounding error in units of u^2, for log-uniform significands: (1/3)(3/8)/ln 2 (METHOD A.4).
ROUNDING_VARIANCE = 0.18
# The partial sums after this many parts approximate all partial sums of an ordered sum (METHOD A.4).
_PARTS = 8
# Error of exp in units of the unit roundoff, squared; the exp of a library is off by one or two (METHOD A.4).
_EXP_SQUARE = 4.0
# A loss by underflow is distributed over [0, half the bound] (METHOD A.4: 0.3 of its square, of a bound half as large).
_UNDERFLOW_VARIANCE = 0.3 / 4.0
# A row is judged statistically if no key with relevant weight has a logit of larger sigma (METHOD A.4).
_LARGEST_LOGIT_SIGMA = 0.25
# A key has no relevant weight if its logit is this far below the row's maximum, plus six sigma.
_NEGLIGIBLE_BELOW = 8.0
# Largest deviation of neighbours from a straight line, as a share of the median size, to count as evenly spaced.
_STRAIGHT = 0.02
# Weights that differ by less than this share count as equal: all terms of the second product round alike.
_EQUAL_WEIGHTS = 1e-4
_FLOAT64_NOISE = 4.0 * 2.0**-53
# Number of entries of a vector that are checked for regularity; sums of fewer than _LEAST_TERMS have no bias.
_CHECKED_ENTRIES = 64
_LEAST_TERMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSigma:
    """Sigma of one block of queries.

    Args:
        sigma: (rows, v_head_dim), standard deviation of a correct result around the oracle; 0 where it is exact.
        judged: (rows,), True where sigma is valid.
        regular: (rows,), True where it is not valid because all terms of a sum are alike.
        hidden: (rows,), True where there is no statistics of rounding: no key is visible, so that the output is exactly
            zero, or the graph rounds scores or weights to integers.
    """

    sigma: Float64
    judged: NDArray[np.bool_]
    regular: NDArray[np.bool_]
    hidden: NDArray[np.bool_]


def sigma_of(stages: Stages, bound: BlockBound, precision: Precision) -> BlockSigma:
    """Compute sigma of one block.

        sigma_ic^2 = sum_j w_ij^2 Var d_ij (v_jc - o_c)^2
                   + K [ u_sum^2 (sum of squared partial sums + sum_j w_ij^2 v_jc^2 + n_i / 3 o_c^2)
                         + (4 u_softmax^2 + u_output^2) o_c^2 + 2 u_operand^2 sum_j w_ij^2 v_jc^2 ]
                   + underflow

    with K = 0.18 and Var d_ij the variance of a computed logit. The rounding error of the
    scale is the same in all logits; it is subtracted in `evidence.py`.

    Args:
        stages: The block.
        bound: Its error bound.
        precision: The declared precision.

    Source: METHOD A.4.
    """
    if stages.block.quantisers:
        none: NDArray[np.bool_] = np.zeros(stages.visible.shape[0], dtype=bool)
        return BlockSigma(sigma=np.zeros_like(bound.bound), judged=none, regular=none, hidden=~none)
    # Huge inputs overflow here, and their rows are not judged statistically; the underflow of tiny ones is harmless.
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
    query, query_size = _normalise_rows(block.query)
    key, key_size = _normalise_rows(np.where(stages.seen[:, None], block.key, 0.0))
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


def _normalise_rows(array: Float64) -> tuple[Float32, Float64]:
    """Divide rows by their largest entry, in float32; return that entry too: (rows, 1)."""
    size = np.abs(array).max(1, initial=0.0, keepdims=True)
    size = np.where(size > 0.0, size, 1.0)
    return (array / size).astype(np.float32), size


def _partial_squares(left: Float32, right: Float32) -> Float32:
    """Sum over l of the squared partial sums P_l of left @ right, approximated from a few l.

    P is interpolated linearly between them: len (P^2 + P P' + P'^2) / 3.
    """
    inner = left.shape[1]
    edges = _edges(inner)
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


@functools.cache
def _edges(inner: int) -> tuple[int, ...]:
    """Where the parts of a sum begin and end."""
    return tuple(int(edge) for edge in np.linspace(0, inner, min(_PARTS, inner) + 1))


def _certain_rows(stages: Stages, logit_variance: Float32, precision: Precision) -> NDArray[np.bool_]:
    """Find rows whose logits are accurate enough for a linear model of the softmax."""
    unit = ROUNDING_VARIANCE * precision.softmax.unit_roundoff**2
    if not logit_variance.size:
        return np.zeros(logit_variance.shape[0], dtype=bool)
    if float(logit_variance.max()) * unit <= _LARGEST_LOGIT_SIGMA**2:
        return np.ones(logit_variance.shape[0], dtype=bool)
    sigma = np.sqrt(logit_variance.astype(np.float64) * unit)
    certain = (sigma <= _LARGEST_LOGIT_SIGMA) | (stages.below >= _NEGLIGIBLE_BELOW + 6.0 * sigma) | ~stages.visible
    rows: NDArray[np.bool_] = np.logical_and.reduce(certain, axis=1)
    return rows


def _normalised(stages: Stages) -> tuple[Float64, float]:
    """Divide value by its largest visible entry and return that entry too; keys hidden from all queries are 0."""
    value = np.where(stages.seen[:, None], stages.block.value, 0.0)
    largest = float(np.abs(value).max(initial=0.0))
    if not 0.0 < largest < np.inf:
        return value, 1.0
    return value / largest, largest


def _from_logits(stages: Stages, logit_variance: Float32, value: Float64, output: Float64) -> Float64:
    """Compute sum_j w_ij^2 Var d_ij (v_jc - o_c)^2 without a rows x keys x width array."""
    factors = stages.weights * stages.weights
    factors *= logit_variance
    # A large common offset of value would cancel badly in the difference of squares. A small one does no harm, and
    # subtracting it would make exact results inexact, such as values that are 0 except for one key.
    seen = value[stages.seen]
    middle = seen.mean(0) if seen.size else np.zeros(value.shape[1])
    middle = np.where(np.abs(middle) > seen.std(0), middle, 0.0) if seen.size else middle
    value, output = np.where(stages.seen[:, None], value - middle, 0.0), output - middle
    width = value.shape[1]
    sums = factors @ np.concatenate([value * value, value], axis=1)
    total = factors.sum(1, keepdims=True)
    squares = output * output * total
    variance: Float64 = sums[:, :width] - 2.0 * output * sums[:, width:] + squares
    # The result of the cancellation is not smaller than its own rounding error.
    noise: Float64 = _FLOAT64_NOISE * (sums[:, :width] + squares)
    return np.maximum(variance, 0.0) + noise


def _from_later_roundings(stages: Stages, value: Float64, output: Float64, precision: Precision) -> Float64:
    """Compute the variance from second product, row sum, division and output, in units of K."""
    weights, narrow = stages.weights.astype(np.float32), value.astype(np.float32)
    terms = ((weights * weights) @ (narrow * narrow)).astype(np.float64)
    keys = np.count_nonzero(weights, axis=1, keepdims=True)
    squares = output * output
    summed = _partial_squares(weights, narrow) + keys / (6.0 * _PARTS) * terms + terms + keys / 3.0 * squares
    variance = _square(precision.output_sum) * summed + 2.0 * _square(precision.operand) * terms
    variance += (4.0 * _square(precision.softmax) + _square(precision.output)) * squares
    return variance


def _regular_rows(stages: Stages) -> NDArray[np.bool_]:
    """Find rows in which all terms of a sum are alike, so that their rounding errors share a sign."""
    block = stages.block
    count = np.count_nonzero(stages.visible, axis=1)
    equal = (stages.weights.max(1, initial=0.0) * count <= 1.0 + _EQUAL_WEIGHTS) & (count >= _LEAST_TERMS)
    seen = np.flatnonzero(stages.seen)[:_CHECKED_ENTRIES]
    value, key = block.value[seen].T, block.key[seen, :_CHECKED_ENTRIES]
    regular: NDArray[np.bool_] = np.zeros(count.shape, dtype=bool)
    if equal.any() and value.size and _evenly_spaced(value).mean() > 0.5:
        regular |= equal
    if key.size and _evenly_spaced(key).mean() > 0.5:
        regular |= _evenly_spaced(block.query[:, :_CHECKED_ENTRIES])
    return regular


def _evenly_spaced(rows: Float64) -> NDArray[np.bool_]:
    """Find rows that are constant or evenly spaced over more than half of their nonzero entries."""
    if rows.shape[1] < _LEAST_TERMS:
        return np.zeros(rows.shape[0], dtype=bool)
    middle = rows[:, 1:-1]
    bend = np.abs(rows[:, 2:] - 2.0 * middle + rows[:, :-2])
    sizes, filled = np.abs(rows), middle != 0.0
    least = np.count_nonzero(filled, axis=1) / 2.0
    # The largest size is above the median and quicker to find: few rows are even that straight.
    if not (np.count_nonzero(_is_straight(bend, sizes.max(1, keepdims=True)) & filled, axis=1) > least).any():
        return np.zeros(rows.shape[0], dtype=bool)
    straight = _is_straight(bend, np.median(sizes, axis=1, keepdims=True)) & filled
    even: NDArray[np.bool_] = np.count_nonzero(straight, axis=1) > least
    return even


def _is_straight(bend: Float64, size: Float64) -> NDArray[np.bool_]:
    is_small: NDArray[np.bool_] = bend <= _STRAIGHT * size
    return is_small
