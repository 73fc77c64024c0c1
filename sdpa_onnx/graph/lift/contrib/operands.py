"""Unpack query, key and value of onnxruntime's operators into three values of rank 3, and add their bias.

Reads no masks and no cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.lift.contrib.node import ContribNode, NotReadError
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["ContribOperands", "add_bias", "describe", "merge_heads_last", "split_last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContribOperands:
    """Query, key and value of rank 3, with the heads in the last axis.

    Args:
        query: (batch, q length, heads * head_dim).
        key: (batch, kv length, kv heads * head_dim).
        value: (batch, kv length, kv heads * v_head_dim).
        head_dim: Head width of query and key.
        v_head_dim: Head width of value.
        equally_long: Whether the numbers of queries and new keys are provably equal.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    head_dim: int
    v_head_dim: int
    equally_long: bool


def describe(value: ir.Value, dtype: ir.DataType | None, *dims: int | None) -> ir.Value:
    """Set the element type and the sizes of a value where the graph does not state them."""
    if value.dtype is None and dtype is not None:
        value.type = ir.TensorType(dtype)
    stated = list(dims) if value.shape is None else list(value.shape)
    if len(stated) == len(dims):
        known = zip(stated, dims, strict=True)
        value.shape = ir.Shape([derived if derived is not None else size for size, derived in known])
    return value


def split_last(nodes: Nodes, value: ir.Value, widths: Sequence[int]) -> Sequence[ir.Value]:
    """Split a value along its last axis; if its rank is unknown, it is 3."""
    before = [None, None] if value.shape is None else list(value.shape)[:-1]
    parts = nodes.many("Split", value, nodes.integers(*widths), outputs=len(widths), axis=-1)
    for part, width in zip(parts, widths, strict=True):
        part.shape = ir.Shape([*before, width])
    return parts


def add_bias(
    one: ContribNode, bias: ir.Value | None, parts: Sequence[ir.Value], widths: Sequence[int]
) -> list[ir.Value]:
    """Add the parts of a projection's bias to query, key and value.

    Args:
        one: The node.
        bias: (sum of widths,), or None.
        parts: Values of rank 3; fewer than `widths` = the first ones.
        widths: Last axes of query, key and value.
    """
    if bias is None:
        return list(parts)
    stated = one.search.dims_of(bias)
    if stated is not None and stated not in ((sum(widths),), (None,)):
        raise NotReadError(f"its bias has shape {list(stated)}, expected [{sum(widths)}]")
    describe(bias, parts[0].dtype, sum(widths))
    added = split_last(one.nodes, bias, widths)
    return [
        one.nodes("Add", part, piece, dtype=part.dtype, shape=ir.Shape([None, None, width]))
        for part, piece, width in zip(parts, added, widths, strict=False)
    ]


def merge_heads_last(nodes: Nodes, value: ir.Value, width: int) -> ir.Value:
    """Transpose (batch, heads, length, head width) to (batch, length, width of all heads)."""
    turned = nodes("Transpose", value, perm=[0, 2, 1, 3], shape=ir.Shape([None] * 4))
    return nodes("Reshape", turned, nodes.integers(0, 0, width), shape=ir.Shape([None, None, width]))
