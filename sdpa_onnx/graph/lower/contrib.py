"""What onnxruntime's own attention operators have in common: 3-D tensors, a float bias without broadcast of queries."""

from typing import Any

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import LowerOptions, Workaround
from sdpa_onnx.core.attention.spec import Dtype, Layout, ScaleRule
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.mask_nodes import attn_bias, bounds_of, rows_with_keys, spread, unknown_rank
from sdpa_onnx.graph.lower.operands import AttentionLengths, heads_side_by_side, scaled
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["bias_and_rows", "common_refusal", "finished", "output_shape", "packed_heads", "query_and_scale"]


def common_refusal(attention: GraphAttention, operator: str) -> str | None:
    """What both operators cannot do."""
    if attention.dtype is Dtype.FLOAT64:
        return f"{operator} has no float64."
    if attention.scores is not None:
        return f"{operator} has no output of the scores as the standard operator has it."
    return unknown_rank(attention)


def packed_heads(nodes: Nodes, attention: GraphAttention, value: ir.Value, heads: int, width: int) -> ir.Value:
    """(batch, length, heads * width) of an input in the attention's layout."""
    return value if attention.spec.layout is Layout.BSH else heads_side_by_side(nodes, value, heads, width)


def query_and_scale(nodes: Nodes, attention: GraphAttention) -> tuple[ir.Value, dict[str, Any]]:
    """The query, 3-D, and the scale as an attribute; 0 means the default there, so it goes into the query."""
    spec = attention.spec
    query = packed_heads(nodes, attention, attention.query, spec.q_num_heads, spec.head_dim)
    if spec.scale is ScaleRule.INVERSE_SQRT:
        return query, {}
    if spec.scale_value:
        return query, {"scale": spec.scale_value}
    return scaled(nodes, query, 0.0, attention.dtype), {"scale": 1.0}


def bias_and_rows(
    nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths, *, opset: int, options: LowerOptions
) -> tuple[ir.Value | None, ir.Value | None]:
    """All masks as a 4-D bias, and which rows have a key: (batch or 1, heads or 1, queries or 1, 1)."""
    is_clamped = Workaround.FINITE_MASK in options.workarounds
    bias = attn_bias(nodes, attention, lengths, is_clamped=is_clamped)
    if bias is None:
        return None, None
    rows = rows_with_keys(nodes, attention, bias, opset=opset)
    per_sample = attention.nonpad_kv_seqlen is not None
    whole = spread(nodes, attention, lengths, bias, bounds=bounds_of(attention.spec), per_sample=per_sample)
    return whole, rows


def output_shape(attention: GraphAttention) -> ir.Shape:
    """Of an operator's 3-D output: ONNX cannot infer it."""
    return ir.Shape([None, None, attention.spec.q_num_heads * attention.spec.v_head_dim])


def finished(nodes: Nodes, attention: GraphAttention, output: ir.Value, rows: ir.Value | None) -> ir.Value:
    """An operator's 3-D output in the attention's layout, zero where a query has no key."""
    spec = attention.spec
    if spec.layout is Layout.BSH and rows is None:
        return output
    split = nodes("Reshape", output, nodes.integers(0, 0, spec.q_num_heads, spec.v_head_dim))
    apart = nodes("Transpose", split, perm=[0, 2, 1, 3])
    if rows is not None:
        zero = nodes.constant(0.0, output.dtype or ir.DataType.FLOAT)
        apart = nodes("Where", rows, apart, zero, dtype=output.dtype)
    if spec.layout is Layout.BNSH:
        return apart
    return heads_side_by_side(nodes, apart, spec.q_num_heads, spec.v_head_dim)
