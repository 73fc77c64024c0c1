"""Defines the bound of one block of queries, and what every bound needs: gamma_n, and which scores may overflow."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.stages import Stages

__all__ = ["BlockBound", "gamma", "overflow_limit", "overflows"]

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBound:
    """Oracle and error bound of one block of queries.

    Args:
        output: (rows, v_head_dim), the oracle's output.
        bound: (rows, v_head_dim), largest |actual - output| that is possible in the declared precision.
        underflow: (rows, v_head_dim), part of the bound that is due to underflow of weights and outputs.
        per_scale: (rows, v_head_dim), d output / d ln(scale).
        overflows: (rows,), True where a stored score may overflow, so that inf and NaN are not a fault.
    """

    output: Float64
    bound: Float64
    underflow: Float64
    per_scale: Float64
    overflows: NDArray[np.bool_]


def gamma(terms: int | NDArray[np.int64], unit_roundoff: float) -> Float64:
    """Compute gamma_n = n u / (1 - n u), the relative error of a sum of n terms in any order.

    The formula is not valid above n u = 1/2; there 2 n u is used.
    """
    product = np.asarray(terms, dtype=np.float64) * unit_roundoff
    return np.where(product < 0.5, product / (1.0 - np.minimum(product, 0.5)), 2.0 * product)


def overflows(stages: Stages, precision: Precision) -> NDArray[np.bool_]:
    """Find rows whose product QK^T, scaled or not, may overflow the format that stores it."""
    block, scores = stages.block, stages.scores
    if not scores.shape[1]:
        return np.zeros(scores.shape[0], dtype=bool)
    largest = np.abs(scores).max(1)
    unscaled = largest / abs(block.scale) if block.scale else np.abs(block.query @ block.key.T).max(1)
    overflowing: NDArray[np.bool_] = np.maximum(unscaled, largest) > overflow_limit(precision)
    return overflowing


def overflow_limit(precision: Precision) -> float:
    """Return the limit above which an exact score may overflow when it is computed and stored.

    A stored score becomes infinite half a spacing above the largest number;
    a sum in that format may already overflow within its own rounding error.
    """
    stored = precision.scores.largest * (1.0 + precision.scores.unit_roundoff / 4.0)
    return min(stored, precision.score_sum.largest * (1.0 - 4.0 * precision.score_sum.unit_roundoff))
