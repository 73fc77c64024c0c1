"""The proven bound: how far a right result can lie from the oracle, element by element.

Deterministic and rigorous (docs/decisions/0003) for any order of evaluation in the declared
arithmetic; matrix products only. The statistical spread is not computed here.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.oracle import HeadBlock, softmax
from sdpa_onnx.core.precision import Format, Precision

__all__ = ["BlockBound", "bound_block", "overflow_limit"]

Float64 = NDArray[np.float64]

# exp(300) is far beyond the point where the convexity cap takes over; the limit avoids overflow only.
_LARGEST_EXPONENT = 300.0
# Smallest normal float32: kernels that flush subnormals to zero lose at most this per key.
_FLUSH_TO_ZERO = 2.0**-126


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBound:
    """Oracle and bound of one block of queries.

    Args:
        output: (rows, v_head_dim), the oracle's output.
        bound: (rows, v_head_dim), largest |actual - output| that the declared arithmetic can give.
        per_scale: (rows, v_head_dim), d output / d ln(scale).
        overflows: (rows,), True where a stored score may overflow, so that inf and NaN are no fault.
    """

    output: Float64
    bound: Float64
    per_scale: Float64
    overflows: NDArray[np.bool_]


def bound_block(block: HeadBlock, precision: Precision) -> BlockBound:
    """Compute oracle and proven bound of one block.

    With every computed logit off by at most E_ij, the computed weights are
    w_j e^(d_j) / sum_k w_k e^(d_k) with |d_j| <= E_ij, and

        |error_c| <= min{ sum_j w_j (e^(E_j) - 1) |v_jc - o_c| / sum_k w_k e^(-E_k),
                          max(max_j v_jc - o_c, o_c - min_j v_jc) }
                     + rounding of the second product, the row sum, the division and the output
                     + underflow.

    The second entry is convexity: whatever the logits did, the result is (up to
    the later roundings) an average of visible rows of value.

    Args:
        block: Float64 inputs, exactly as the runtime received them.
        precision: The declared arithmetic.

    Source: METHOD A.3; softmax's condition after Blanchard, Higham and Higham,
        IMA J. Numer. Anal. 41(4), 2021; gamma_n = n u / (1 - n u) after Higham,
        Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    scores = block.scores()
    logits = block.logits(block.capped(scores))
    weights = softmax(logits)
    output = weights @ block.value
    logit_error = _logit_error(block, precision, scores, logits)
    lifted = _lifted(logits, weights, logit_error)
    kept = (weights * np.exp(-np.minimum(logit_error, _LARGEST_EXPONENT))).sum(1, keepdims=True)
    kept = np.where(kept > 0.0, kept, 1.0)
    seen = block.value[~np.isneginf(block.bias).all(0)]
    from_logits = _weighted_distance(lifted, block.value, output) / kept
    bound = np.fmin(from_logits, _distance_to_hull(seen, output))
    # What is rounded later is what was computed: weights of at most this, and outputs within the bound so far.
    computed = (weights + lifted) / kept
    bound += _later_roundings(computed, block.value, seen, np.abs(output) + bound, precision)
    moved = scores * _softcap_slope(block, scores)
    centred = moved - (weights * moved).sum(1, keepdims=True)
    per_scale = (weights * centred) @ block.value
    return BlockBound(output=output, bound=bound, per_scale=per_scale, overflows=_overflows(block, precision, scores))


def gamma(terms: int | NDArray[np.int64], unit_roundoff: float) -> Float64:
    """gamma_n = n u / (1 - n u): relative error of a sum of n terms in any order.

    Beyond n u = 1/2 the formula has no meaning; twice n u is used.
    """
    product = np.asarray(terms, dtype=np.float64) * unit_roundoff
    return np.where(product < 0.5, product / (1.0 - np.minimum(product, 0.5)), 2.0 * product)


def _unit(format_: Format | None) -> float:
    return 0.0 if format_ is None else format_.unit_roundoff


def _logit_error(block: HeadBlock, precision: Precision, scores: Float64, logits: Float64) -> Float64:
    """E_ij: largest absolute error of a computed logit, relative to the row's maximum.

    The error of the computed maximum itself cancels: it shifts numerator and
    denominator alike.
    """
    softmax_unit = precision.softmax.unit_roundoff
    products = abs(block.scale) * (np.abs(block.query) @ np.abs(block.key).T)
    magnitude = np.abs(scores)
    # A product of factors (1 + delta) is at most e^(sum of |delta|).
    sum_error = gamma(block.query.shape[1], precision.score_sum.unit_roundoff)
    error = np.expm1(sum_error + 2.0 * (_unit(precision.operand) + precision.prescaled.unit_roundoff)) * products
    # Prescaled operands near zero lose an absolute amount.
    tiny = precision.prescaled.tiny * abs(block.scale) ** 0.5
    error += tiny * (np.abs(block.query).sum(1)[:, None] + np.abs(block.key).sum(1)[None, :])
    # From here on roundings act on what was computed, at most |score| + error. First the scale itself, rounded to the
    # format of the prescaled operands (both factors) or of the softmax.
    rounding = 2.0 * precision.prescaled.unit_roundoff + 2.0 * softmax_unit + precision.scores.unit_roundoff
    error += rounding * (magnitude + error)
    if block.softcap:
        # Division, tanh, product; tanh's slope is at most 1, so earlier errors do not grow.
        rounding = (2.0 + precision.exp_units) * softmax_unit + precision.scores.unit_roundoff
        error += rounding * (magnitude + error)
    added = np.where(np.isfinite(block.bias), np.abs(block.bias), 0.0)
    if added.any():
        error += (softmax_unit + precision.scores.unit_roundoff) * (magnitude + error + added)
    highest = logits.max(1, keepdims=True) if logits.shape[1] else logits
    below = np.where(np.isfinite(logits), np.abs(logits - np.where(np.isfinite(highest), highest, 0.0)), 0.0)
    error += softmax_unit * (below + 2.0 * error)
    return error + precision.exp_units * softmax_unit + precision.weights.unit_roundoff


def _lifted(logits: Float64, weights: Float64, logit_error: Float64) -> Float64:
    """w_j (e^(E_j) - 1), also where w_j is tiny and E_j huge."""
    if not logit_error.size or logit_error.max() < 1.0:
        return weights * np.expm1(logit_error)
    highest = logits.max(1, keepdims=True)
    below = logits - np.where(np.isfinite(highest), highest, 0.0)
    total = np.exp(below).sum(1, keepdims=True)
    raised = below - np.log(np.where(total > 0.0, total, 1.0)) + logit_error
    large = np.exp(np.minimum(raised, _LARGEST_EXPONENT)) - weights
    return np.where(logit_error < 1.0, weights * np.expm1(np.minimum(logit_error, 1.0)), large)


def _weighted_distance(factors: Float64, value: Float64, output: Float64) -> Float64:
    """Bound sum_j factor_ij |v_jc - o_ic| from above without a rows x keys x width pass.

    The smaller of the triangle inequality and Cauchy-Schwarz.
    """
    largest = float(np.abs(value).max(initial=0.0)) or 1.0
    value, output = value / largest, output / largest  # so that no square overflows
    total = factors.sum(1, keepdims=True)
    triangle = factors @ np.abs(value) + np.abs(output) * total
    squares = factors @ (value * value) - 2.0 * output * (factors @ value) + output * output * total
    # The difference of squares cancels; its own rounding is covered by this share of its terms.
    slack = 1e-13 * (factors @ (value * value) + output * output * total)
    smaller: Float64 = largest * np.fmin(triangle, np.sqrt(total * (np.maximum(squares, 0.0) + slack)))
    return smaller


def _distance_to_hull(seen: Float64, output: Float64) -> Float64:
    """Largest distance from the output to a row of value that any query of the block sees."""
    if not seen.size:
        return np.zeros_like(output)
    distance: Float64 = np.maximum(seen.max(0) - output, output - seen.min(0))
    return distance


def _later_roundings(computed: Float64, value: Float64, seen: Float64, reach: Float64, precision: Precision) -> Float64:
    """Rounding after the logits: second product, row sum, division, output, underflow.

    Args:
        computed: (rows, keys), no computed weight is larger.
        value: (keys, v_head_dim).
        seen: The rows of value that some query of the block sees.
        reach: (rows, v_head_dim), no computed output is larger in magnitude.
        precision: The declared arithmetic.
    """
    keys = np.maximum((computed > 0.0).sum(1, keepdims=True), 1)
    sum_error = gamma(keys, precision.output_sum.unit_roundoff)
    # Computed weights add up to 1, so their sum over |value| is no larger than its largest visible entry.
    spent = np.fmin(computed @ np.abs(value), np.abs(seen).max(0, initial=0.0))
    rounding = (sum_error + _unit(precision.operand)) * spent
    rounding += (sum_error + 4.0 * precision.softmax.unit_roundoff + 4.0 * precision.output.unit_roundoff) * reach
    underflow = np.minimum(computed, 4.0 * precision.weights.tiny) @ np.abs(value) + 2.0 * precision.output.tiny
    if precision.softmax is not Format.FLOAT64 and value.shape[0]:
        underflow += value.shape[0] * _FLUSH_TO_ZERO * np.abs(value).max(0, keepdims=True)
    total: Float64 = rounding + underflow
    return total


def _softcap_slope(block: HeadBlock, scores: Float64) -> Float64:
    """Derivative of the capped score: 1 - tanh(score / softcap)^2."""
    if not block.softcap:
        return np.ones_like(scores)
    slope: Float64 = 1.0 - np.tanh(scores / block.softcap) ** 2
    return slope


def _overflows(block: HeadBlock, precision: Precision, scores: Float64) -> NDArray[np.bool_]:
    """Rows whose product QK^T, scaled or not, may exceed the format that stores it."""
    if not scores.shape[1]:
        return np.zeros(scores.shape[0], dtype=bool)
    unscaled = np.abs(scores) / abs(block.scale) if block.scale else np.abs(block.query @ block.key.T)
    largest = np.maximum(unscaled, np.abs(scores)).max(1)
    overflowing: NDArray[np.bool_] = largest > overflow_limit(precision)
    return overflowing


def overflow_limit(precision: Precision) -> float:
    """Exact scores above this may overflow once they are computed and stored.

    A stored score becomes infinite from half a spacing above the largest number
    on; a sum in that format already where its own roundings lead.
    """
    stored = precision.scores.largest * (1.0 + precision.scores.unit_roundoff / 4.0)
    return min(stored, precision.score_sum.largest * (1.0 - 4.0 * precision.score_sum.unit_roundoff))
