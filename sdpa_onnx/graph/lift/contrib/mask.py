"""Convert the masks of onnxruntime's operators to masks of the standard operator, as nodes.

Their padding masks add `mask_filter_value` to the scores of hidden keys. It is finite, so a fully masked row is the
softmax of its own scores and not zero; such a mask becomes a float mask. Reads no operator; `mha` and others do.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sdpa_onnx.core.attention.inputs import numpy_dtype
from sdpa_onnx.core.attention.spec import Dtype, MaskKind
from sdpa_onnx.graph.lift.contrib.node import ContribNode, NotReadError
from sdpa_onnx.graph.nodes import Nodes

__all__ = [
    "ContribMask",
    "combine_masks",
    "fill_of",
    "positions",
    "size_of",
    "visible_from_bounds",
    "visible_from_mask",
]

# Source: onnxruntime docs/ContribOperators.md, mask_filter_value "Default value is -10000.0f".
_FILL = -10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContribMask:
    """A mask of the standard operator, or None, and its kind."""

    value: ir.Value | None
    kind: MaskKind


def fill_of(one: ContribNode, dtype: Dtype) -> float:
    """The number that the node adds to scores of hidden keys, in its element type; -inf if that type overflows."""
    with np.errstate(over="ignore"):
        fill = float(np.float32(one.number("mask_filter_value", _FILL)).astype(numpy_dtype(dtype)))
    if np.isnan(fill) or fill > 0.0:
        raise NotReadError(
            f"its mask_filter_value is {fill:g}, which hides no key (set a negative number, such as -10000)"
        )
    return fill


def size_of(nodes: Nodes, value: ir.Value, axis: int) -> ir.Value:
    """The size of one axis: (1,) int64."""
    shape = nodes("Shape", value, dtype=ir.DataType.INT64)
    return nodes("Gather", shape, nodes.integers(axis), axis=0)


def positions(nodes: Nodes, size: ir.Value) -> ir.Value:
    """The positions 0, 1, 2, ...: (size,) int64.

    Args:
        nodes: Node builder.
        size: (1,) int64.
    """
    end = nodes("Squeeze", size, nodes.integers(0))
    int64 = ir.DataType.INT64
    return nodes("Range", nodes.constant(0, int64), end, nodes.constant(1, int64))


def visible_from_mask(nodes: Nodes, mask: ir.Value, rank: int) -> ir.Value:
    """Visible keys from an integer mask: (batch or 1, 1, queries or 1, keys), boolean.

    Args:
        nodes: Node builder.
        mask: (batch, keys) or (batch, queries, keys); above 0 = visible.
        rank: Rank of the mask, 2 or 3.
    """
    seen = nodes("Greater", mask, nodes.constant(0, mask.dtype or ir.DataType.INT32), dtype=ir.DataType.BOOL)
    if rank == 2:
        return nodes("Unsqueeze", seen, nodes.integers(1, 2), shape=ir.Shape([None, 1, 1, None]))
    return nodes("Unsqueeze", seen, nodes.integers(1), shape=ir.Shape([None, 1, None, None]))


def visible_from_bounds(
    nodes: Nodes, mask: ir.Value, *, batch: ir.Value, keys: ir.Value, has_starts: bool = False
) -> ir.Value:
    """Visible keys from the end and optional start of each sample's keys: (batch, 1, 1, keys), boolean.

    Args:
        nodes: Node builder.
        mask: (batch,): ends; (2 batch,): ends, then starts; (3 batch + 2,): ends, then offsets into packed samples.
        batch: (1,) int64.
        keys: (1,) int64: number of past and new keys.
        has_starts: Whether the operator supports (2 batch,).
    """
    bounds = nodes("Cast", mask, dtype=ir.DataType.INT64, to=int(ir.DataType.INT64))
    places = positions(nodes, keys)
    ends = nodes("Slice", bounds, nodes.integers(0), batch)
    seen = nodes("Less", places, nodes("Unsqueeze", ends, nodes.integers(1)), dtype=ir.DataType.BOOL)
    if has_starts:
        starts = _starts(nodes, bounds, batch)
        begun = nodes("Less", places, nodes("Unsqueeze", starts, nodes.integers(1)), dtype=ir.DataType.BOOL)
        seen = nodes("And", seen, nodes("Not", begun))
    return nodes("Unsqueeze", seen, nodes.integers(1, 2), shape=ir.Shape([None, 1, 1, None]))


def _starts(nodes: Nodes, bounds: ir.Value, batch: ir.Value) -> ir.Value:
    """The second half of (2 batch,) numbers; 0 for any other count, so that one graph works for all counts."""
    twice = nodes("Add", batch, batch)
    length = nodes("Shape", bounds, dtype=ir.DataType.INT64)
    padded = nodes("Concat", bounds, nodes("Expand", nodes.integers(0), batch), axis=0)
    second = nodes("Slice", padded, batch, twice)
    is_twice = nodes("Equal", length, twice, dtype=ir.DataType.BOOL)
    return nodes("Where", is_twice, second, nodes.integers(0), dtype=ir.DataType.INT64)


def combine_masks(
    nodes: Nodes, *, seen: ir.Value | None, bias: ir.Value | None, fill: float, element: ir.DataType
) -> ContribMask:
    """Combine a mask of visible keys and an added bias into one mask.

    Args:
        nodes: Node builder.
        seen: Boolean, of rank 4, True = visible; or None.
        bias: Added to the scores, of rank 4; or None.
        fill: Number added for hidden keys; -inf = they are hidden whatever the bias is.
        element: Element type of the attention.
    """
    if seen is None:
        return ContribMask(value=bias, kind=MaskKind.NONE if bias is None else MaskKind.FLOAT)
    four = ir.Shape([None] * 4)
    if np.isneginf(fill):
        if bias is None:
            return ContribMask(value=seen, kind=MaskKind.BOOL)
        hidden = nodes.constant(fill, element)
        return ContribMask(value=nodes("Where", seen, bias, hidden, dtype=element, shape=four), kind=MaskKind.FLOAT)
    zero, filled = nodes.constant(0.0, element), nodes.constant(fill, element)
    added = nodes("Where", seen, zero, filled, dtype=element, shape=seen.shape or four)
    if bias is not None:
        added = nodes("Add", bias, added, dtype=element, shape=four)
    return ContribMask(value=added, kind=MaskKind.FLOAT)
