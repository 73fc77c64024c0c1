"""Read an attention sink: one more column of the softmax, such as a learned logit a head, whose weight is dropped.

The canonical attention has it as one more key and value of zeros, whose mask is the sink.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.paths import PathNode
from sdpa_onnx.graph.lift.refused import UnreadReason
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["SINK_NOTE", "Sink", "drops_sink", "mask_with_sink", "subtracts_row_max", "with_zero_key"]

SINK_NOTE = (
    "the softmax has a sink, a column without a value (node {node}): a form has it as one more key, of zeros, whose "
    "mask is the sink"
)
# Axis of the keys in (batch, heads, keys, width).
_KEYS_AXIS = 2
_RANK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """A column that is appended to the scores, or put before them.

    Args:
        node: The Concat or Pad.
        value: (batch or 1, q heads or 1, q length or 1, 1); None = `number` everywhere.
        number: Used without a value.
        is_first: Whether the column is before those of the keys.
    """

    node: ir.Node
    value: ir.Value | None = None
    number: float = 0.0
    is_first: bool = False

    @classmethod
    def read(cls, search: GraphFacts, step: PathNode, rank: int) -> "Sink | UnreadReason":
        """Read the Concat or Pad on the path of the scores.

        Args:
            search: The graph.
            step: Of the path from the product to the softmax.
            rank: Rank of the scores.
        """
        node = step.node
        name = search.name_of(node)
        if rank != _RANK:
            return UnreadReason(f"a column is added to scores of {rank} axes, which is not read: node {name}")
        return _padded(search, node, name) if node.op_type == "Pad" else _joined(search, step, name)


def _joined(search: GraphFacts, step: PathNode, name: str) -> Sink | UnreadReason:
    node = step.node
    axis = node.attributes.get("axis")
    if axis is None or axis.as_int() not in (-1, _RANK - 1):
        return UnreadReason(f"the scores are concatenated along another axis than the keys: node {name}")
    column = node.inputs[1 - step.position] if len(node.inputs) == 2 else None
    sizes = search.dims_of(column)
    if column is None or sizes is None or sizes[-1] != 1:
        return UnreadReason(f"the scores are concatenated with more than one column: node {name}")
    return Sink(node=node, value=_unexpanded(search, column), is_first=step.position == 1)


def _padded(search: GraphFacts, node: ir.Node, name: str) -> Sink | UnreadReason:
    mode = node.attributes.get("mode")
    pads = search.constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    fill = node.inputs[2] if len(node.inputs) > 2 else None
    number = 0.0 if fill is None else search.scalar_of(fill)
    has_axes = len(node.inputs) > 3 and node.inputs[3] is not None
    counts = [] if pads is None or has_axes else [int(one) for one in pads.ravel()]
    column = [0] * (2 * _RANK)
    last = [*column[:-1], 1]
    first = [*column[: _RANK - 1], 1, *column[_RANK:]]
    is_constant = mode is None or mode.as_string() == "constant"
    if not is_constant or number is None or counts not in (last, first):
        return UnreadReason(f"the scores are padded, but not by one column with a number: node {name}")
    return Sink(node=node, number=number, is_first=counts == first)


def _unexpanded(search: GraphFacts, column: ir.Value) -> ir.Value:
    """The column before it was expanded to every sample and query."""
    node = column.producer()
    if node is None or node.op_type != "Expand" or not is_standard(node) or node.inputs[0] is None:
        return column
    sizes = search.dims_of(node.inputs[0])
    return node.inputs[0] if sizes is not None and len(sizes) == _RANK else column


def drops_sink(search: GraphFacts, step: PathNode, sink: Sink) -> bool:
    """Whether a Slice of the weights drops exactly the column of the sink."""
    node = step.node
    if node.op_type != "Slice" or not is_standard(node) or step.position != 0:
        return False
    given = [search.constant_of(value) for value in list(node.inputs)[1:]]
    if len(given) < 3 or any(one is None or one.size != 1 for one in given):
        return False
    start, end, axis, *stride = (int(one.ravel()[0]) for one in given if one is not None)
    if axis not in (-1, _RANK - 1) or stride not in ([], [1]):
        return False
    return (start == 1 and end >= np.iinfo(np.int32).max) if sink.is_first else (start, end) == (0, -1)


def subtracts_row_max(search: GraphFacts, step: PathNode) -> bool:
    """Whether a Sub subtracts from each row its own maximum, which a softmax does not depend on."""
    node = step.node
    if node.op_type != "Sub" or step.position != 0 or node.inputs[1] is None:
        return False
    maximum = node.inputs[1].producer()
    if maximum is None or maximum.op_type != "ReduceMax" or not is_standard(maximum):
        return False
    sizes = search.dims_of(node.inputs[0])
    axes, kept = maximum.attributes.get("axes"), maximum.attributes.get("keepdims")
    numbers = None if axes is None else np.asarray(axes.as_ints())
    if numbers is None and len(maximum.inputs) > 1:
        numbers = search.constant_of(maximum.inputs[1])
    if sizes is None or numbers is None or maximum.inputs[0] is not node.inputs[0]:
        return False
    last = [int(number) % len(sizes) for number in numbers.ravel()] == [len(sizes) - 1]
    return last and (kept is None or kept.as_int() == 1)


def with_zero_key(nodes: Nodes, operand: ir.Value) -> ir.Value:
    """Keys or values (batch, heads, keys, width) with one of zeros after the last."""
    before, after = [0] * _RANK, [0] * _RANK
    after[_KEYS_AXIS] = 1
    shape = operand.shape
    padded = None if shape is None else ir.Shape([shape[0], shape[1], None, shape[3]])
    return nodes("Pad", operand, nodes.integers(*before, *after), shape=padded)


def mask_with_sink(
    nodes: Nodes, sink: Sink, mask: ir.Value | None, *, query: ir.Value, key: ir.Value, dtype: ir.DataType
) -> ir.Value:
    """The mask as a float with the sink as its last column: (batch or 1, q heads or 1, q length, keys + 1).

    Args:
        nodes: Builder of the new nodes.
        sink: The column.
        mask: Boolean or float, (batch or 1, q heads or 1, q length or 1, keys) or (q length, keys); or None.
        query: (batch, q heads, q length, width).
        key: (batch, heads, keys, width), without the sink.
        dtype: Element type of the attention.
    """
    base = _base(nodes, mask, key=key, dtype=dtype)
    column = sink.value
    if column is None:
        column = nodes.constant(np.full((1,) * _RANK, sink.number), dtype)
    if column.dtype != dtype:
        column = nodes("Cast", column, dtype=dtype, to=dtype)
    # Every query has a row: onnxruntime's Attention does not broadcast a single one.
    rows = nodes("Shape", query, dtype=ir.DataType.INT64, start=2, end=3)
    outer = nodes("Shape", column, dtype=ir.DataType.INT64, start=0, end=2)
    base = nodes("Expand", base, nodes("Concat", outer, rows, nodes.integers(1), axis=0), dtype=dtype)
    outer = nodes("Shape", base, dtype=ir.DataType.INT64, start=0, end=3)
    column = nodes("Expand", column, nodes("Concat", outer, nodes.integers(1), axis=0), dtype=dtype)
    heads = None if query.shape is None else query.shape[1]
    return nodes("Concat", base, column, dtype=dtype, shape=ir.Shape([None, heads, None, None]), axis=-1)


def _base(nodes: Nodes, mask: ir.Value | None, *, key: ir.Value, dtype: ir.DataType) -> ir.Value:
    """The mask as a float of four axes, without the sink."""
    if mask is None:
        keys = nodes("Shape", key, dtype=ir.DataType.INT64, start=2, end=3)
        zero = nodes.constant(np.zeros((1,) * _RANK), dtype)
        return nodes("Expand", zero, nodes("Concat", nodes.integers(1, 1, 1), keys, axis=0), dtype=dtype)
    if mask.dtype == ir.DataType.BOOL:
        kept, hidden = nodes.constant(0.0, dtype), nodes.constant(-np.inf, dtype)
        mask = nodes("Where", mask, kept, hidden, dtype=dtype, shape=mask.shape)
    if mask.shape is not None and len(mask.shape) == 2:
        return nodes("Unsqueeze", mask, nodes.integers(0, 1))
    return mask
