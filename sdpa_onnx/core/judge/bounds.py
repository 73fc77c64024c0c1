"""Computes a proven error bound: the largest distance of a correct result from the oracle, for each element.

Deterministic and rigorous (docs/decisions/0003) for any order of evaluation in the declared
precision; uses matrix products only. Estimates no standard deviation; see `sigma`.
"""

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.oracle import HeadBlock
from sdpa_onnx.core.attention.precision import FloatFormat, Precision
from sdpa_onnx.core.attention.stages import Stages, stages_of
from sdpa_onnx.core.judge.block_bound import BlockBound, gamma, overflows
from sdpa_onnx.core.judge.quantised_bounds import bound_quantised

__all__ = ["bound_block", "bound_stages", "lifted", "logit_error"]

Float64 = NDArray[np.float64]

# Only avoids overflow: long before exp(300) the convexity limit is the smaller one.
_LARGEST_EXPONENT = 300.0
# Smallest normal float32: kernels that flush subnormals to zero lose at most this per key.
_FLUSH_TO_ZERO = 2.0**-126


def bound_block(block: HeadBlock, precision: Precision) -> BlockBound:
    """Compute oracle and proven error bound of one block.

    If every computed logit has an error of at most E_ij, the computed weights are
    w_j e^(d_j) / sum_k w_k e^(d_k) with |d_j| <= E_ij, and

        |error_c| <= min{ sum_j w_j (e^(E_j) - 1) |v_jc - o_c| / sum_k w_k e^(-E_k),
                          max(max_j v_jc - o_c, o_c - min_j v_jc) }
                     + rounding of the second product, the row sum, the division and the output
                     + underflow.

    The second entry is convexity: whatever the logits are, the result is (up to
    the later roundings) an average of visible rows of value.

    Args:
        block: Float64 inputs, exactly as the runtime received them.
        precision: The declared precision.

    Source: METHOD A.3; softmax's condition after Blanchard, Higham and Higham,
        IMA J. Numer. Anal. 41(4), 2021; gamma_n = n u / (1 - n u) after Higham,
        Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    return bound_stages(stages_of(block), precision)


def bound_stages(stages: Stages, precision: Precision) -> BlockBound:
    """Compute oracle and proven error bound from existing stages."""
    if stages.block.quantisers:
        return bound_quantised(stages, precision)
    value, weights, output = stages.block.value, stages.weights, stages.output
    error = logit_error(stages, precision)
    raised = lifted(stages, error)
    shrunk = np.exp(-np.minimum(error, _LARGEST_EXPONENT))
    kept = np.vecdot(weights, shrunk)[:, None]
    kept = np.where(kept > 0.0, kept, 1.0)
    seen = value[stages.seen]
    from_logits = _weighted_distance(raised, value, output) / kept
    bound = np.fmin(from_logits, _distance_to_hull(seen, output))
    # Later roundings apply to computed values: weights up to this size, outputs within the bound so far.
    computed = (weights + raised) / kept
    underflow = _underflow(computed, value, precision)
    bound += _later_roundings(computed, value, seen, np.abs(output) + bound, precision) + underflow
    return BlockBound(
        output=output,
        bound=bound,
        underflow=underflow,
        per_scale=stages.per_scale,
        overflows=overflows(stages, precision),
    )


def _unit(format_: FloatFormat | None) -> float:
    return 0.0 if format_ is None else format_.unit_roundoff


def logit_error(stages: Stages, precision: Precision) -> Float64:
    """Bound E_ij, the absolute error of a computed logit relative to the row's maximum.

    The error of the computed maximum itself cancels, because it shifts numerator and
    denominator equally.
    """
    block = stages.block
    softmax_unit = precision.softmax.unit_roundoff
    magnitude = np.abs(stages.scores)
    # A product of factors (1 + delta) is at most e^(sum of |delta|).
    sum_error = gamma(block.query.shape[1], precision.score_sum.unit_roundoff)
    error = np.expm1(sum_error + 2.0 * (_unit(precision.operand) + precision.prescaled.unit_roundoff)) * stages.products
    # Prescaled operands near zero lose an absolute amount.
    tiny = precision.prescaled.tiny * abs(block.scale) ** 0.5
    error += tiny * (np.abs(block.query).sum(1)[:, None] + np.abs(block.key).sum(1)[None, :])
    # From here on roundings apply to computed values, at most |score| + error. The first is that of the scale itself,
    # rounded to the format of the prescaled operands (both factors) or of the softmax.
    rounding = 2.0 * precision.prescaled.unit_roundoff + 2.0 * softmax_unit + precision.scores.unit_roundoff
    error += rounding * (magnitude + error)
    if block.softcap:
        # Division, tanh and product; the slope of tanh is at most 1, so earlier errors do not grow.
        rounding = (2.0 + precision.exp_units) * softmax_unit + precision.scores.unit_roundoff
        error += rounding * (magnitude + error)
    added = np.where(np.isfinite(block.bias), np.abs(block.bias), 0.0)
    if added.any():
        error += (softmax_unit + precision.scores.unit_roundoff) * (magnitude + error + added)
    error *= 1.0 + 2.0 * softmax_unit
    error += softmax_unit * stages.below
    error += precision.exp_units * softmax_unit + precision.weights.unit_roundoff
    return error


def lifted(stages: Stages, error: Float64) -> Float64:
    """Compute w_j (e^(E_j) - 1), also if w_j is tiny and E_j huge."""
    logits, weights = stages.logits, stages.weights
    if not error.size or error.max() < 1.0:
        grown = np.expm1(error)
        grown *= weights
        return grown
    highest = logits.max(1, keepdims=True)
    below = logits - np.where(np.isfinite(highest), highest, 0.0)
    total = np.exp(below).sum(1, keepdims=True)
    raised = below - np.log(np.where(total > 0.0, total, 1.0)) + error
    large = np.exp(np.minimum(raised, _LARGEST_EXPONENT)) - weights
    return np.where(error < 1.0, weights * np.expm1(np.minimum(error, 1.0)), large)


def _weighted_distance(factors: Float64, value: Float64, output: Float64) -> Float64:
    """Bound sum_j factor_ij |v_jc - o_ic| from above without a rows x keys x width array.

    The smaller of the triangle inequality and Cauchy-Schwarz.
    """
    largest = float(np.abs(value).max(initial=0.0)) or 1.0
    value, output = value / largest, output / largest  # squares must not overflow
    total = factors.sum(1, keepdims=True)
    width = value.shape[1]
    sums = factors @ np.concatenate([np.abs(value), value * value, value], axis=1)
    magnitudes, squared, plain = sums[:, :width], sums[:, width : 2 * width], sums[:, 2 * width :]
    triangle = magnitudes + np.abs(output) * total
    squares = squared - 2.0 * output * plain + output * output * total
    # The difference of squares cancels; its own rounding is covered by this share of its terms.
    slack = 1e-13 * (squared + output * output * total)
    smaller: Float64 = largest * np.fmin(triangle, np.sqrt(total * (np.maximum(squares, 0.0) + slack)))
    return smaller


def _distance_to_hull(seen: Float64, output: Float64) -> Float64:
    """Largest distance from the output to a row of value that is visible to any query of the block."""
    if not seen.size:
        return np.zeros_like(output)
    distance: Float64 = np.maximum(seen.max(0) - output, output - seen.min(0))
    return distance


def _later_roundings(computed: Float64, value: Float64, seen: Float64, reach: Float64, precision: Precision) -> Float64:
    """Bound the rounding errors after the logits: second product, row sum, division, output.

    Args:
        computed: (rows, keys), upper bound of the computed weights.
        value: (keys, v_head_dim).
        seen: The rows of value that are visible to some query of the block.
        reach: (rows, v_head_dim), upper bound of |computed output|.
        precision: The declared precision.
    """
    keys = np.maximum(np.count_nonzero(computed, axis=1, keepdims=True), 1)
    sum_error = gamma(keys, precision.output_sum.unit_roundoff)
    # Computed weights add up to 1, so the weighted sum of |value| is at most its largest visible entry.
    magnitude = np.fmin(computed @ np.abs(value), np.abs(seen).max(0, initial=0.0))
    # Both operands of the second product are rounded: weights and value.
    operands = (1.0 + _unit(precision.operand)) ** 2 - 1.0
    rounding: Float64 = (sum_error + (1.0 + sum_error) * operands) * magnitude
    rounding += (sum_error + 4.0 * precision.softmax.unit_roundoff + 4.0 * precision.output.unit_roundoff) * reach
    return rounding


def _underflow(computed: Float64, value: Float64, precision: Precision) -> Float64:
    """Bound the loss by underflow of weights and outputs: (rows, v_head_dim)."""
    underflow: Float64 = np.minimum(computed, 4.0 * precision.weights.tiny) @ np.abs(value)
    underflow += 2.0 * precision.output.tiny
    if precision.softmax is not FloatFormat.FLOAT64 and value.shape[0]:
        underflow += value.shape[0] * _FLUSH_TO_ZERO * np.abs(value).max(0, keepdims=True)
    return underflow
