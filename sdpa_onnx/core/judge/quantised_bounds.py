"""Computes the proven error bound of an attention whose scores or weights are rounded to integers by the graph.

The oracle rounds as the graph declares (`score_quantisers`). A runtime may cross a step where the oracle is near one;
the bound holds the whole step there, and nothing elsewhere. Integers are exact, so no sigma exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import FloatFormat, Precision
from sdpa_onnx.core.attention.score_quantisers import Quantiser, quantised
from sdpa_onnx.core.attention.stages import Stages
from sdpa_onnx.core.judge.block_bound import BlockBound, gamma, overflows

__all__ = ["bound_quantised"]

Float64 = NDArray[np.float64]

# Roundings between a number and its integer: the steps of both operands multiplied, divided by the step of the result,
# the integer sum converted to float, the product of both. A plain QuantizeLinear has one, its division.
# Source: requantisation of onnxruntime's QLinearMatMul and QLinearAdd, a float multiplier on an int32 sum.
_TO_INTEGER = 4.0
# The dequantised value is (integer - zero point) times the step: one rounding, and one more where it is stored.
_FROM_INTEGER = 2.0
# Smallest normal float32: kernels that flush subnormals to zero lose at most this per key.
_FLUSH_TO_ZERO = 2.0**-126


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interval:
    """Limits of a computed array, each (rows, keys)."""

    low: Float64
    high: Float64

    @property
    def size(self) -> Float64:
        """Largest finite |number| in it."""
        sizes = [np.where(np.isfinite(limit), np.abs(limit), 0.0) for limit in (self.low, self.high)]
        found: Float64 = np.maximum(*sizes)
        return found

    def widened(self, error: Float64 | float) -> "_Interval":
        return _Interval(low=self.low - error, high=self.high + error)

    def rounded(self, quantisers: Sequence[Quantiser], unit: float) -> "_Interval":
        """After pairs of QuantizeLinear and DequantizeLinear, which never decrease."""
        found = self
        for quantiser in quantisers:
            near = found.widened(_TO_INTEGER * unit * found.size)
            found = _Interval(low=quantised(near.low, [quantiser]), high=quantised(near.high, [quantiser]))
            found = found.widened(_FROM_INTEGER * unit * found.size)
        return found

    def times(self, factor: float, unit: float) -> "_Interval":
        one, other = factor * self.low, factor * self.high
        found = _Interval(low=np.minimum(one, other), high=np.maximum(one, other))
        return found.widened(unit * found.size)


def bound_quantised(stages: Stages, precision: Precision) -> BlockBound:
    """Compute oracle and proven error bound of one block with quantised scores or weights.

    Proof, by intervals that contain every correct result, stage by stage. Let x be exact and |x^ - x| <= e the error
    of the computed x^. QuantizeLinear and DequantizeLinear together are a function Q that never decreases (division by
    a positive step, rounding, limits), so Q(x - e) <= Q(x^) <= Q(x + e): equal to Q(x) except where x is within e of a
    boundary between two steps. The product has |error| <= gamma_n sum |q| |k|; the scale, the mask and each change
    between number and integer round relative to their result; the softmax of logits in [l, h] has

        w_j in [ e^l_j / (e^l_j + sum_k!=j e^h_k), e^h_j / (e^h_j + sum_k!=j e^l_k) ],

    because it increases in its own logit and decreases in the others. With the weights of the computed rows in
    [a_j, b_j] and those of the oracle w_j,

        |error_c| <= sum_j max(b_j - w_j, w_j - a_j) |v_jc| + gamma_n sum_j b_j |v_jc| + rounding of the output.

    Args:
        stages: The stages as the graph declares them: its integers, in float64.
        precision: The declared precision.

    Source: ONNX QuantizeLinear and DequantizeLinear; gamma_n after Higham, Accuracy and Stability of Numerical
        Algorithms, section 3.1; the intervals after Moore, Interval Analysis, 1966.
    """
    block = stages.block
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = _weights(stages, _logits(stages, precision), precision)
        moved = np.maximum(high - stages.weights, stages.weights - low)
        value = np.abs(block.value)
        keys = np.maximum(np.count_nonzero(high, axis=1, keepdims=True), 1)
        # The integers of weights and values are summed exactly, and the sum is multiplied by their steps.
        sum_error = gamma(keys, precision.output_sum.unit_roundoff) + _TO_INTEGER * precision.output.unit_roundoff
        operands = (1.0 + _unit(precision.operand)) ** 2 - 1.0
        bound = moved @ value + (sum_error + (1.0 + sum_error) * operands) * (high @ value)
        bound += 4.0 * precision.output.unit_roundoff * (np.abs(stages.output) + bound)
    bound += 2.0 * precision.output.tiny
    return BlockBound(
        output=stages.output,
        bound=bound,
        underflow=np.zeros_like(bound),
        per_scale=np.zeros_like(bound),  # steps have no slope
        overflows=overflows(stages, precision),
    )


def _unit(format_: FloatFormat | None) -> float:
    return 0.0 if format_ is None else format_.unit_roundoff


def _logits(stages: Stages, precision: Precision) -> _Interval:
    """Limits of the computed logits."""
    block, quantisers = stages.block, stages.block.quantisers
    unit = max(precision.softmax.unit_roundoff, precision.scores.unit_roundoff)
    magnitude = np.abs(block.query) @ np.abs(block.key).T
    product = block.query @ block.key.T
    sum_error = gamma(block.query.shape[1], precision.score_sum.unit_roundoff)
    # Without a pair in between, the scale may be applied to query and key (METHOD A.2).
    before = 0.0 if quantisers.product else precision.prescaled.unit_roundoff
    error = np.expm1(sum_error + 2.0 * (_unit(precision.operand) + before)) * magnitude
    found = _Interval(low=product, high=product).widened(error + precision.scores.unit_roundoff * np.abs(product))
    found = found.rounded(quantisers.product, unit)
    # The scale itself is rounded too, once in each of its two factors.
    scaling = 2.0 * precision.prescaled.unit_roundoff + 2.0 * unit + precision.scores.unit_roundoff
    found = found.times(block.scale, scaling).rounded(quantisers.scaled, unit)
    hidden = np.isneginf(block.bias)
    bias = np.where(hidden, 0.0, block.bias)
    found = found.widened(2.0 * unit * (found.size + np.abs(bias)) * (bias != 0.0))
    masked = [np.where(hidden, -np.inf, limit + bias) for limit in (found.low, found.high)]
    return _Interval(low=masked[0], high=masked[1]).rounded(quantisers.masked, unit)


def _weights(stages: Stages, logits: _Interval, precision: Precision) -> tuple[Float64, Float64]:
    """Limits of the computed weights, (rows, keys) each."""
    if not stages.weights.size:
        return stages.weights, stages.weights
    softmax = precision.softmax.unit_roundoff
    highest = stages.logits.max(1, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0.0)
    # The row's maximum is subtracted, which rounds, and exp is off by some units.
    width = np.where(np.isfinite(logits.low), logits.high - logits.low, 0.0)
    may_be_highest = logits.high >= logits.low.max(1, keepdims=True)
    error = softmax * (stages.below + width + np.where(may_be_highest, width, 0.0).max(1, keepdims=True))
    error += precision.exp_units * softmax + precision.weights.unit_roundoff
    least, most = np.exp(logits.low - highest - error), np.exp(logits.high - highest + error)
    others_least = np.maximum(least.sum(1, keepdims=True) - least, 0.0)
    others_most = np.maximum(most.sum(1, keepdims=True) - most, 0.0)
    low, high = _share(least, others_most), _share(most, others_least)
    keys = np.maximum(np.count_nonzero(most, axis=1, keepdims=True), 1)
    coarser = max(precision.output_sum.unit_roundoff, softmax)
    rounding = gamma(keys, coarser) + 4.0 * softmax + precision.weights.unit_roundoff
    lost = np.where(most > 0.0, 4.0 * precision.weights.tiny + _FLUSH_TO_ZERO, 0.0)
    weights = _Interval(low=low * (1.0 - rounding) - lost, high=high * (1.0 + rounding) + lost)
    weights = weights.rounded(stages.block.quantisers.weights, softmax)
    return np.maximum(weights.low, 0.0), weights.high


def _share(one: Float64, others: Float64) -> Float64:
    total = one + others
    found: Float64 = one / np.where(total > 0.0, total, 1.0)
    return found
