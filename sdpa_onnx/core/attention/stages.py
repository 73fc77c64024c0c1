"""Computes the intermediate arrays of one block of attention once, for bound, sigma and score tests.

Float64, by the oracle's formula. Decides no verdict.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.oracle import HeadBlock

__all__ = ["Stages", "cut_block", "stages_of"]

Float64 = NDArray[np.float64]

# Elements of one rows x keys array (1 MiB of float64): about twenty such arrays fit into the cache.
_PART_ELEMENTS = 2**17


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """One block of queries with every intermediate array up to the output.

    Args:
        block: The float64 inputs.
        visible: (rows, keys), False where the weight is 0 whatever the score is.
        seen: (keys,), True for a key that is visible to at least one query of the block.
        products: (rows, keys), |scale| sum_l |q_il| |k_jl|.
        scores: (rows, keys), before softcap and bias.
        slope: (rows, keys), derivative of the softcap; None without a softcap.
        logits: (rows, keys), -inf where hidden.
        below: (rows, keys), the row's maximum minus the logit; 0 where hidden.
        weights: (rows, keys).
        output: (rows, v_head_dim).
        per_scale: (rows, v_head_dim), d output / d ln(scale).
    """

    block: HeadBlock
    visible: NDArray[np.bool_]
    seen: NDArray[np.bool_]
    products: Float64
    scores: Float64
    slope: Float64 | None
    logits: Float64
    below: Float64
    weights: Float64
    output: Float64
    per_scale: Float64


@np.errstate(over="ignore", invalid="ignore")  # of infinite inputs
def stages_of(block: HeadBlock) -> Stages:
    """Compute a block's stages."""
    scores = block.scores()
    logits = block.logits(block.capped(scores))
    weights = block.weights(logits)
    output = weights @ block.value
    visible = block.visible
    seen: NDArray[np.bool_] = np.logical_or.reduce(visible, axis=0)
    slope = 1.0 - np.tanh(scores / block.softcap) ** 2 if block.softcap else None
    moved = scores if slope is None else scores * slope
    moved = moved - np.vecdot(weights, moved)[:, None]
    moved *= weights
    return Stages(
        block=block,
        visible=visible,
        seen=seen,
        products=abs(block.scale) * (np.abs(block.query) @ np.abs(block.key).T),
        scores=scores,
        slope=slope,
        logits=logits,
        below=_below(logits),
        weights=weights,
        output=output,
        per_scale=moved @ block.value,
    )


def cut_block(block: HeadBlock) -> Iterator[HeadBlock]:
    """Split a block into parts whose rows x keys arrays fit into the processor's cache."""
    step = max(1, _PART_ELEMENTS // max(1, block.key.shape[0]))
    for start in range(0, block.rows.size, step):
        part = slice(start, start + step)
        yield replace(block, rows=block.rows[part], query=block.query[part], bias=block.bias[part])


def _below(logits: Float64) -> Float64:
    if not logits.shape[1]:
        return logits
    highest = logits.max(1, keepdims=True)
    below = np.where(np.isfinite(highest), highest, 0.0) - logits
    below[~np.isfinite(below)] = 0.0
    return below
