"""Query, key and value of onnxruntime's operators as three values of three axes: unpacked, with their bias added."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.lift.contrib.node import ContribNode, NotReadError
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["ContribOperands", "add_bias", "describe", "heads_inside", "split_last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContribOperands:
    """What enters an attention, heads side by side.

    Args:
        query: (batch, q length, heads * head_dim).
        key: (batch, kv length, kv heads * head_dim).
        value: (batch, kv length, kv heads * v_head_dim).
        head_dim: Of query and key.
        v_head_dim: Of value.
        equally_long: Whether queries and new keys are known to be as many.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    head_dim: int
    v_head_dim: int
    equally_long: bool


def describe(value: ir.Value, dtype: ir.DataType | None, *dims: int | None) -> ir.Value:
    """Give a value the type and the sizes that follow from the operator where the graph states none."""
    if value.dtype is None and dtype is not None:
        value.type = ir.TensorType(dtype)
    stated = list(dims) if value.shape is None else list(value.shape)
    if len(stated) == len(dims):
        known = zip(stated, dims, strict=True)
        value.shape = ir.Shape([told if told is not None else size for size, told in known])
    return value


def split_last(nodes: Nodes, value: ir.Value, widths: Sequence[int]) -> Sequence[ir.Value]:
    """Cut a value apart along its last axis; it has three where the graph does not know."""
    before = [None, None] if value.shape is None else list(value.shape)[:-1]
    parts = nodes.many("Split", value, nodes.integers(*widths), outputs=len(widths), axis=-1)
    for part, width in zip(parts, widths, strict=True):
        part.shape = ir.Shape([*before, width])
    return parts


def add_bias(
    one: ContribNode, bias: ir.Value | None, parts: Sequence[ir.Value], widths: Sequence[int]
) -> list[ir.Value]:
    """Add the parts of a projection's bias to what they belong to.

    Args:
        one: The node.
        bias: (sum of widths,), or None.
        parts: Values of three axes; fewer than widths = the first ones.
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


def heads_inside(nodes: Nodes, value: ir.Value, width: int) -> ir.Value:
    """Bring (batch, heads, length, head width) to (batch, length, width of all heads)."""
    turned = nodes("Transpose", value, perm=[0, 2, 1, 3], shape=ir.Shape([None] * 4))
    return nodes("Reshape", turned, nodes.integers(0, 0, width), shape=ir.Shape([None, None, width]))
