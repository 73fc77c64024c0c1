"""Shared parts of the forms that use onnxruntime's attention operators: 3-D tensors, and a bias with all query rows.

Writes no operator; `ort_mha` and `ort_gqa` do.
"""

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import LowerOptions, Workaround
from sdpa_onnx.core.attention.spec import Dtype, Layout, ScaleRule
from sdpa_onnx.core.attention.window_bounds import bounds_of
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.mask_nodes import attn_bias, expand_mask, last_keys, rows_with_keys, unknown_rank
from sdpa_onnx.graph.lower.operands import AttentionLengths, merge_heads, scaled
from sdpa_onnx.graph.nodes import Nodes

__all__ = [
    "OperatorBias",
    "bias_of",
    "common_refusal",
    "finish_output",
    "output_shape",
    "packed_heads",
    "query_and_scale",
]


def common_refusal(attention: GraphAttention, operator: str) -> str | None:
    """Why neither operator can express the attention, or None."""
    if attention.dtype is Dtype.FLOAT64:
        return f"{operator} does not support float64."
    if attention.scores is not None:
        return f"{operator} has no scores output like that of the standard operator."
    return unknown_rank(attention)


def packed_heads(nodes: Nodes, attention: GraphAttention, value: ir.Value, heads: int, width: int) -> ir.Value:
    """An input of the attention as (batch, length, heads * width)."""
    return value if attention.spec.layout is Layout.BSH else merge_heads(nodes, value, heads, width)


def query_and_scale(nodes: Nodes, attention: GraphAttention) -> tuple[ir.Value, dict[str, Any]]:
    """The 3-D query, and the scale as an attribute; a scale of 0 is applied to the query, as 0 means the default."""
    spec = attention.spec
    query = packed_heads(nodes, attention, attention.query, spec.q_num_heads, spec.head_dim)
    if spec.scale is ScaleRule.INVERSE_SQRT:
        return query, {}
    if spec.scale_value:
        return query, {"scale": spec.scale_value}
    return scaled(nodes, query, 0.0, attention.dtype), {"scale": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorBias:
    """All masks of an attention as an operator takes them.

    Args:
        bias: (batch or 1, heads or 1, queries, keys), or None.
        rows: The rows with a visible key: (batch or 1, heads or 1, queries or 1, 1); None = all.
        last_keys: The last key that a query of each sample sees, see `mask_nodes.last_keys`; None = the last of all.
    """

    bias: ir.Value | None = None
    rows: ir.Value | None = None
    last_keys: ir.Value | None = None


def bias_of(
    nodes: Nodes,
    attention: GraphAttention,
    lengths: AttentionLengths,
    *,
    opset: int,
    options: LowerOptions,
    by_sample: bool = False,
) -> OperatorBias:
    """All masks as a bias; with `by_sample` also the last key of each sample."""
    is_clamped = Workaround.FINITE_MASK in options.workarounds
    bias = attn_bias(nodes, attention, lengths, is_clamped=is_clamped)
    if bias is None:
        return OperatorBias()
    rows = rows_with_keys(nodes, attention, bias, opset=opset)
    per_sample = attention.nonpad_kv_seqlen is not None
    expanded = expand_mask(nodes, attention, lengths, bias, bounds=bounds_of(attention.spec), per_sample=per_sample)
    last = last_keys(nodes, attention, bias, opset=opset) if by_sample else None
    return OperatorBias(bias=expanded, rows=rows, last_keys=last)


def output_shape(attention: GraphAttention) -> ir.Shape:
    """Shape of an operator's 3-D output, which ONNX cannot infer."""
    return ir.Shape([None, None, attention.spec.q_num_heads * attention.spec.v_head_dim])


def finish_output(nodes: Nodes, attention: GraphAttention, output: ir.Value, rows: ir.Value | None) -> ir.Value:
    """An operator's 3-D output in the attention's layout, with fully masked rows set to zero."""
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
    return merge_heads(nodes, apart, spec.q_num_heads, spec.v_head_dim)
