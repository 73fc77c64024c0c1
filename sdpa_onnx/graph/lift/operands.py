"""Trace query, key and value back through transposes, casts and repeated heads.

Adds nodes to the copy of the graph where it has no such value. Factors are stripped in `factors`.
"""

from collections.abc import Sequence

import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.sizes import SizeEntry, SymbolicSize
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["as_dtype", "order_of", "transposed", "ungrouped", "untransposed"]


def untransposed(search: GraphFacts, nodes: Nodes, value: ir.Value) -> ir.Value:
    """A value with its last two axes swapped: the source of its Transpose, or a new Transpose of it.

    Args:
        search: The graph.
        nodes: Builder for a Transpose if the graph has no such value.
        value: (..., head_dim, kv length).
    """
    node = value.producer()
    sizes = search.sizes_of(value)
    rank = 0 if sizes is None else len(sizes)
    swap = [*range(rank - 2), rank - 1, rank - 2]
    if node is not None and is_standard(node):
        order = order_of(node, rank) if node.op_type == "Transpose" else []
        if order and node.inputs[0] is not None:
            return transposed(nodes, node.inputs[0], [order[axis] for axis in swap])
        if node.op_type == "Reshape":
            source = _through_reshapes(search, node)
            if source is not None:
                return source
    return transposed(nodes, value, swap)


def as_dtype(value: ir.Value, dtype: ir.DataType | None) -> ir.Value | None:
    """The value in an element type: itself, or the source of its widening Cast; None if neither has that type."""
    node = value.producer()
    while value.dtype != dtype and node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        source = node.inputs[0]
        if source.dtype is None or value.dtype is None or source.dtype.itemsize >= value.dtype.itemsize:
            return None
        value, node = source, source.producer()
    return value if value.dtype == dtype else None


def ungrouped(search: GraphFacts, value: ir.Value) -> tuple[ir.Value, int]:
    """A value before its heads were repeated for grouped-query attention, and the number of repeats.

    Recognises Unsqueeze - Expand or Tile - Reshape, and Gather of repeated heads. Heads must be repeated interleaved
    (0 0 1 1), as the operator does; tiled heads (0 1 0 1) stay unchanged.

    Args:
        search: The graph.
        value: (batch, q heads, kv length, width).
    """
    reshape = value.producer()
    sizes = search.sizes_of(value)
    if reshape is None or sizes is None or len(sizes) != 4:
        return value, 1
    if reshape.op_type == "Gather" and len(reshape.inputs) == 2:
        return _gathered(search, value, reshape)
    repeat = _producer(reshape, "Reshape", "Expand", "Tile")
    lifted = None if repeat is None or repeat.inputs[0] is None else repeat.inputs[0]
    source = None if lifted is None else _producer_source(lifted)
    kept, wide = search.sizes_of(source), search.sizes_of(repeat.outputs[0] if repeat is not None else None)
    narrow = search.sizes_of(lifted)
    if source is None or kept is None or wide is None or narrow is None or len(kept) != 4 or len(wide) != 5:
        return value, 1
    times, heads = wide[2], kept[1]
    if not isinstance(times, int) or not isinstance(heads, int):
        return value, 1
    made = [(narrow, (heads, 1)), (wide, (heads, times)), (sizes, (heads * times,))]
    return (source, times) if all(_is_regrouped(kept, shape, axes) for shape, axes in made) else (value, 1)


def _is_regrouped(kept: Sequence[SizeEntry], shape: Sequence[SizeEntry], heads: tuple[int, ...]) -> bool:
    """Whether a shape is (batch, *heads, length, width) of a kept (batch, heads, length, width).

    Two different names of the length count as equal: torch uses that of the key in the target shape of the value.
    """
    if len(shape) != len(heads) + 3:
        return False
    same_length = shape[-2] == kept[2] or (isinstance(shape[-2], SymbolicSize) and isinstance(kept[2], SymbolicSize))
    return same_length and (*shape[:-2], shape[-1]) == (kept[0], *heads, kept[3])


def _gathered(search: GraphFacts, value: ir.Value, gather: ir.Node) -> tuple[ir.Value, int]:
    axis = gather.attributes.get("axis")
    order = search.constant_of(gather.inputs[1])
    source = gather.inputs[0]
    kept = search.dims_of(source)
    if order is None or source is None or kept is None or len(kept) != 4 or not kept[1]:
        return value, 1
    if axis is None or axis.as_int() != 1:
        return value, 1
    times = order.size // kept[1]
    even = times > 0 and order.tolist() == [head for head in range(kept[1]) for _ in range(times)]
    return (source, times) if even else (value, 1)


def _producer(node: ir.Node, wanted: str, *before: str) -> ir.Node | None:
    """The producer of the first input of a `wanted` node, if its operator is in `before`."""
    if node.op_type != wanted or not is_standard(node) or not node.inputs or node.inputs[0] is None:
        return None
    found = node.inputs[0].producer()
    return found if found is not None and found.op_type in before and is_standard(found) else None


def _producer_source(lifted: ir.Value) -> ir.Value | None:
    node = lifted.producer()
    if node is None or node.op_type not in ("Unsqueeze", "Reshape") or not is_standard(node):
        return None
    return next(iter(node.inputs), None)


def _through_reshapes(search: GraphFacts, last: ir.Node) -> ir.Value | None:
    """The source of Reshape (-1, length, width) - Transpose - Reshape, as torch.onnx writes key^T up to opset 22."""
    transpose = _producer(last, "Reshape", "Transpose")
    first = None if transpose is None else _producer(transpose, "Transpose", "Reshape")
    if transpose is None or first is None or order_of(transpose, 3) != [0, 2, 1]:
        return None
    if len(first.inputs) != 2 or len(last.inputs) != 2:
        return None
    source = first.inputs[0]
    sizes, end = search.sizes_of(source), search.sizes_of(last.outputs[0])
    flat, target = search.sizes_in(first.inputs[1]), search.sizes_in(last.inputs[1])
    if source is None or sizes is None or end is None or flat is None or target is None or len(sizes) != len(end):
        return None
    if _same(flat.tolist()[1:], sizes[-2:]) and _same(target.tolist(), (*sizes[:-2], sizes[-1], sizes[-2])):
        return source
    return None


def _same(one: Sequence[object], other: Sequence[SizeEntry]) -> bool:
    """Whether a target shape provably equals a shape; one of its entries may be -1."""
    if len(one) != len(other):
        return False
    different = [left for left, right in zip(one, other, strict=True) if left != right]
    return not different or different == [-1]


def order_of(node: ir.Node, rank: int) -> list[int]:
    """The permutation of a Transpose of that rank; empty if it is not a valid permutation."""
    attribute = node.attributes.get("perm")
    order = list(attribute.as_ints()) if attribute else list(reversed(range(rank)))
    return order if sorted(order) == list(range(rank)) else []


def transposed(nodes: Nodes, value: ir.Value, perm: list[int]) -> ir.Value:
    """A Transpose of a value; the value itself for the identity permutation."""
    if perm == list(range(len(perm))):
        return value
    known = value.shape is not None and len(value.shape) == len(perm)
    shape = ir.Shape([value.shape[axis] for axis in perm]) if known and value.shape is not None else None
    return nodes("Transpose", value, shape=shape, perm=perm)
