"""Determines where a NaN in the inputs must appear in the output, and where it may appear.

A NaN in inputs that are visible to a query must reach its output. A NaN behind a hidden key may, because 0 times NaN
is NaN and the operator's specification leaves it open. All other elements are computed as if the NaN were 0.
Where a softmax has no guard, a row without a visible key is NaN too; a runtime that returns something else there is
not accused.
Infinite inputs are not handled. Decides no verdict.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import HeadBlock
from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.stages import Stages

__all__ = ["NanPlaces", "NanSources", "contains_nan", "empty_rows", "nan_places", "replace_nan"]

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class NanSources:
    """Which inputs of a block are NaN.

    Args:
        value: (keys, v_head_dim), True where value is NaN.
        lost: (rows,), queries with a NaN among their visible scores.
        doubtful: (rows,), other queries with a NaN among their hidden scores.
    """

    value: Bool
    lost: Bool
    doubtful: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NanPlaces:
    """Where a block's output is NaN.

    Args:
        must: (rows, v_head_dim), True where it must be.
        may: (rows, v_head_dim), True where it may be.
        open: (rows,), True where the graph defines NaN because no key is visible, and nothing is accused.
    """

    must: Bool
    may: Bool
    open: Bool


def contains_nan(inputs: AttentionInputs) -> bool:
    """Whether any floating-point array contains a NaN."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return any(array.dtype.kind not in "bui" and bool(np.isnan(array).any()) for array in inputs.named().values())


def replace_nan(block: HeadBlock) -> tuple[HeadBlock, NanSources]:
    """Replace every NaN of a block by 0 and return where they were."""
    visible = block.visible
    query, key = np.isnan(block.query).any(1), np.isnan(block.key).any(1)
    scored = np.logical_or.reduce(visible & (key | np.isnan(block.bias)), axis=1)
    lost: Bool = np.asarray((query & np.logical_or.reduce(visible, axis=1)) | scored)
    sources = NanSources(value=np.isnan(block.value), lost=lost, doubtful=~lost & (query | bool(key.any())))
    clean = replace(
        block,
        query=_without(block.query),
        key=_without(block.key),
        value=_without(block.value),
        bias=_without(block.bias),
    )
    return clean, sources


def nan_places(stages: Stages, sources: NanSources, precision: Precision, *, nan_rows: bool = False) -> NanPlaces:
    """Determine which output elements the NaN inputs reach.

    Args:
        stages: Stages of the block with 0 for every NaN.
        sources: Which inputs are NaN.
        precision: A NaN of a visible key must reach the output if the key's weight is at least the
            unit roundoff of stored weights; a smaller weight may be rounded to 0.
        nan_rows: Whether a row without a visible key is NaN, because the softmax has no guard.
    """
    weighty = stages.visible & (stages.weights >= precision.weights.unit_roundoff)
    must = (weighty.astype(np.float64) @ sources.value.astype(np.float64) > 0.0) | sources.lost[:, None]
    empty = empty_rows(stages.block) if nan_rows else np.zeros(stages.visible.shape[0], bool)
    must &= ~empty[:, None]
    if stages.block.quantisers:  # integers hold no NaN, and which one it becomes is left open
        reached = ~empty[:, None] & (must | sources.value.any(0) | sources.doubtful[:, None])
        return NanPlaces(must=np.zeros_like(must), may=reached, open=empty | sources.lost)
    may = ~must & ~empty[:, None] & (sources.value.any(0) | sources.doubtful[:, None])
    return NanPlaces(must=must, may=may, open=empty)


def empty_rows(block: HeadBlock) -> Bool:
    """(rows,), True for a query that sees no key, although there are keys."""
    return np.asarray((~block.visible).all(-1) & (block.bias.shape[-1] > 0))


def _without(array: Float64) -> Float64:
    return np.where(np.isnan(array), 0.0, array)
