"""Split and merge the batch and head axes of operands: count the heads of a merged axis, and reshape.

Reads no softmax and no mask.
"""

import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.operands import order_of
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["find_head_count", "merge_heads", "split_heads"]


def find_head_count(search: GraphFacts, value: ir.Value) -> int | None:
    """Head count in the first axis of a rank-3 operand, from the nodes that produce it; None if they do not show it.

    Recognises a Reshape of (batch, heads, length, width), and torch's multi-head attention, which splits
    (length, batch, heads * width) into (length, batch * heads, width) and swaps the first two axes.

    Args:
        search: The graph.
        value: (batch * heads, length, width).
    """
    node = value.producer()
    sizes = search.sizes_of(value)
    if node is None or sizes is None or not is_standard(node):
        return None
    if node.op_type == "Reshape":
        source = search.sizes_of(node.inputs[0])
        fits = source is not None and len(source) == 4 and source[2:] == sizes[1:]
        return source[1] if source is not None and fits and isinstance(source[1], int) else None
    if node.op_type == "Transpose" and order_of(node, 3) == [1, 0, 2]:
        return _head_count_of_split(search, node.inputs[0])
    return None


def _head_count_of_split(search: GraphFacts, value: ir.Value | None) -> int | None:
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Reshape" or not is_standard(node):
        return None
    before, after = search.sizes_of(node.inputs[0]), search.sizes_of(value)
    if before is None or after is None or len(before) != 3 or len(after) != 3 or before[0] != after[0]:
        return None
    total, width = before[2], after[2]
    if not isinstance(total, int) or not isinstance(width, int) or width == 0 or total % width:
        return None
    return total // width


def split_heads(search: GraphFacts, nodes: Nodes, value: ir.Value, heads: int) -> ir.Value:
    """(batch * heads, length, width) as (batch, heads, length, width): the value before it was merged, or a Reshape."""
    node = value.producer()
    sizes = search.sizes_of(value)
    if node is not None and node.op_type == "Reshape" and is_standard(node):
        source = node.inputs[0]
        before = search.sizes_of(source)
        if source is not None and before is not None and sizes is not None and before[1:] == (heads, *sizes[1:]):
            return source
    rest = nodes("Shape", value, dtype=ir.DataType.INT64, shape=ir.Shape([2]), start=1)
    target = nodes("Concat", nodes.integers(-1, heads), rest, axis=0)
    shape = None if value.shape is None else ir.Shape([None, heads, *value.shape[1:]])
    return nodes("Reshape", value, target, shape=shape)


def merge_heads(nodes: Nodes, value: ir.Value) -> ir.Value:
    """(batch, heads, length, width) as (batch * heads, length, width)."""
    rest = nodes("Shape", value, dtype=ir.DataType.INT64, start=2)
    return nodes("Reshape", value, nodes("Concat", nodes.integers(-1), rest, axis=0))
