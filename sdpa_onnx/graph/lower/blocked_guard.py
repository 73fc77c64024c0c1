"""Find at run time which blocks may skip the keys outside the band of a mask: those whose every query sees a key.

A mask that hides by the lowest number hides nothing from a query all of whose keys it hides: the query averages over
all of them, those outside the band too. Does not choose blocks and keys; `blocked_plan` does.
"""

import numpy as np
import onnx_ir as ir

from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.blocked_numbers import IndexArithmetic
from sdpa_onnx.graph.lower.mask_nodes import SEEN_SHARE, lowest_number, own_mask, reduced
from sdpa_onnx.graph.lower.operands import AttentionLengths, element_type
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["highest_entries", "is_seen_by_all"]

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64


def highest_entries(nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths, *, opset: int) -> ir.Value:
    """The highest entry of the mask for each query, of the head for which it is lowest: (samples * queries + 1,).

    Written outside the Loop and its branches, where a runtime merges those of all layers with one mask. The last entry
    is a 0 that only an attention without queries reads.
    """
    mask, numbers = own_mask(nodes, attention), IndexArithmetic(nodes)
    if mask is None or mask.shape is None:
        raise AssertionError("a band is proved of masks of known rank only")
    highest = reduced(nodes, "ReduceMax", mask, opset)
    if missing := 4 - len(mask.shape):
        highest = nodes("Unsqueeze", highest, nodes.integers(*range(missing)))
    of_heads = reduced(nodes, "ReduceMin", highest, opset, axis=1)
    wide = nodes("Expand", of_heads, lengths.as_shape(lengths.batch, 1, lengths.queries, 1))
    flat = nodes("Reshape", wide, numbers.vector(numbers.multiply(lengths.batch, lengths.queries)))
    return nodes("Concat", flat, nodes.constant(np.zeros(1), mask.dtype or ir.DataType.FLOAT), axis=0)


def is_seen_by_all(
    nodes: Nodes,
    attention: GraphAttention,
    highest: ir.Value,
    *,
    first: ir.Value,
    rows: ir.Value,
    opset: int,
) -> ir.Value:
    """Whether every query of each block sees a key within the band, boolean, (iterations,).

    Args:
        nodes: Node builder.
        attention: Its element type is that of the mask.
        highest: From `highest_entries`.
        first: (iterations,): index into it of each block's first query.
        rows: Queries per block.
        opset: Opset of the graph.
    """
    numbers = IndexArithmetic(nodes)
    places = numbers.add(numbers.column(first), numbers.range(numbers.maximum(rows, 1)))
    lowest_of_block = reduced(nodes, "ReduceMin", nodes("Gather", highest, places, axis=0), opset)
    limit = nodes.constant(SEEN_SHARE * lowest_number(attention), element_type(attention.dtype))
    return nodes("Greater", nodes("Reshape", lowest_of_block, nodes.integers(-1)), limit, dtype=_BOOL)
