"""Write onnxruntime's MultiHeadAttention: all masks as a bias, the cache concatenated before it, no softcap.

Follows the operator's specification. Does not work around kernel faults.
"""

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import LowerOptions
from sdpa_onnx.core.attention.spec import Layout
from sdpa_onnx.core.attention.window_bounds import bounds_of
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.contrib import (
    OperatorBias,
    bias_of,
    common_refusal,
    finish_output,
    output_shape,
    packed_heads,
    query_and_scale,
)
from sdpa_onnx.graph.lower.form_outputs import FormOutputs
from sdpa_onnx.graph.lower.mask_nodes import may_have_empty_rows
from sdpa_onnx.graph.lower.operands import AttentionLengths, join_keys_and_values, merge_heads, same_size
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["build", "needed_opset", "refusal"]

_OPERATOR = "MultiHeadAttention"


def needed_opset(attention: GraphAttention, options: LowerOptions) -> int:  # noqa: ARG001  # one signature for all forms
    """13: the operator has its own domain; masks use Where and ReduceMax."""
    return 13


def refusal(attention: GraphAttention, *, opset: int, options: LowerOptions) -> str | None:  # noqa: ARG001
    """Why the operator cannot express the attention: a softcap, float64, or a scores output."""
    if attention.spec.softcap:
        return f"{_OPERATOR} has no softcap."
    return common_refusal(attention, _OPERATOR)


def build(nodes: Nodes, attention: GraphAttention, *, opset: int, options: LowerOptions) -> FormOutputs:
    """Write the operator; FINITE_MASK is the only workaround that applies.

    Its own causality is used only if the graph states equal numbers of queries
    and keys: for other lengths its specification does not define the alignment.

    Source: onnxruntime docs/ContribOperators.md, com.microsoft.MultiHeadAttention, version 1.
    """
    lengths, spec = AttentionLengths(nodes, attention), attention.spec
    query, attributes = query_and_scale(nodes, attention)
    own_key, own_value, present_key, present_value = _keys_and_values(nodes, attention)
    masks = OperatorBias()
    if _is_lower_triangle(attention):
        attributes["unidirectional"] = 1
    else:
        masks = bias_of(nodes, attention, lengths, opset=opset, options=options)
    output = nodes(
        _OPERATOR,
        *[query, own_key, own_value, *([None, None, masks.bias] if masks.bias is not None else [])],
        domain=CONTRIB_DOMAIN,
        shape=output_shape(attention),
        num_heads=spec.q_num_heads,
        **attributes,
    )
    return FormOutputs(
        output=finish_output(nodes, attention, output, masks.rows if may_have_empty_rows(attention) else None),
        present_key=present_key,
        present_value=present_value,
    )


def _is_lower_triangle(attention: GraphAttention) -> bool:
    """Whether it is causal and nothing else, with equal numbers of queries and keys."""
    axis = attention.spec.layout.length_axis
    optional = (attention.attn_mask, attention.nonpad_kv_seqlen, attention.past_key)
    bounds = bounds_of(attention.spec)
    plain = bounds.right == 0 and bounds.left is None and all(value is None for value in optional)
    return plain and same_size(attention.query, axis, attention.key, axis)


def _keys_and_values(
    nodes: Nodes, attention: GraphAttention
) -> tuple[ir.Value, ir.Value, ir.Value | None, ir.Value | None]:
    """Keys and values for the operator, then the present outputs; past concatenated, heads repeated.

    The operator's own cache is not used, because it needs equal widths of keys
    and values. 4-D keys and values are passed unchanged if their widths are equal.
    """
    spec = attention.spec
    wants_present = attention.present_key is not None or attention.present_value is not None
    equal_width = spec.head_dim == spec.v_head_dim
    as_given = attention.past_key is None and spec.heads_per_kv == 1
    if as_given and not wants_present and (spec.layout is Layout.BSH or not equal_width):
        key = packed_heads(nodes, attention, attention.key, spec.kv_num_heads, spec.head_dim)
        value = packed_heads(nodes, attention, attention.value, spec.kv_num_heads, spec.v_head_dim)
        return key, value, None, None
    joined = join_keys_and_values(nodes, attention)
    key = _repeated(nodes, attention, joined[0], spec.head_dim)
    value = _repeated(nodes, attention, joined[1], spec.v_head_dim)
    presents = joined if wants_present else (None, None)
    if equal_width:
        return key, value, *presents
    key = merge_heads(nodes, key, spec.q_num_heads, spec.head_dim)
    return key, merge_heads(nodes, value, spec.q_num_heads, spec.v_head_dim), *presents


def _repeated(nodes: Nodes, attention: GraphAttention, tensor: ir.Value, width: int) -> ir.Value:
    """Repeat each key head for its query heads: (batch, q heads, keys, width)."""
    times = attention.spec.heads_per_kv
    if times == 1:
        return tensor
    apart = nodes("Unsqueeze", tensor, nodes.integers(2))
    repeated = nodes("Expand", apart, nodes.integers(1, 1, times, 1, 1))
    return nodes("Reshape", repeated, nodes.integers(0, attention.spec.q_num_heads, -1, width))
