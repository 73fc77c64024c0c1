"""Write onnxruntime's GroupQueryAttention: self-attention over grouped key heads, with causality, window and cache.

Follows the operator's specification. Does not work around kernel faults.
"""

from typing import Any

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
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
from sdpa_onnx.graph.lower.operands import AttentionLengths, has_equal_lengths, stated_size
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["build", "needed_opset", "refusal"]

_OPERATOR = "GroupQueryAttention"
# Source: onnxruntime, group_query_attention_helper.h: "head_size must be a multiple of 8".
_WIDTH_STEP = 8
# Positions of optional inputs.
# Source: onnxruntime docs/ContribOperators.md, com.microsoft.GroupQueryAttention, version 1.
_BIAS_INPUT, _QUERY_LENGTHS_INPUT = 10, 16


def needed_opset(attention: GraphAttention, options: LowerOptions) -> int:  # noqa: ARG001  # one signature for all forms
    """13: the operator has its own domain; masks use Where and ReduceMax."""
    return 13


def refusal(attention: GraphAttention, *, opset: int, options: LowerOptions) -> str | None:  # noqa: ARG001
    """Why the operator cannot express the attention: widths, different lengths, or a cache without causality."""
    spec = attention.spec
    if spec.head_dim != spec.v_head_dim:
        return f"{_OPERATOR} needs equal widths of keys and values: they are {spec.head_dim} and {spec.v_head_dim}."
    if spec.head_dim % _WIDTH_STEP:
        return f"{_OPERATOR} needs a head width that is a multiple of {_WIDTH_STEP}: it is {spec.head_dim}."
    if attention.past_key is not None and not _is_causal(attention):
        return f"{_OPERATOR} supports a cache of several samples only if it is causal{_not_causal(attention)}."
    return _lengths_differ(attention) or common_refusal(attention, _OPERATOR)


def build(nodes: Nodes, attention: GraphAttention, *, opset: int, options: LowerOptions) -> FormOutputs:
    """Write the operator, its lengths and its bias; FINITE_MASK is the only workaround that applies.

    Its window includes the query's own key. With a cache, the number of queries
    of each sample is an input; without it, the operator supports several
    queries for a single sample only. Without a cache, the number of keys of each sample ends behind the last key that
    any of its queries sees, so that the kernel skips padding on the right; the bias holds what is hidden before it.

    Source: onnxruntime docs/ContribOperators.md, com.microsoft.GroupQueryAttention, version 1.
    """
    lengths, spec = AttentionLengths(nodes, attention), attention.spec
    query, scale = query_and_scale(nodes, attention)
    inputs: list[ir.Value | None] = [None] * (_QUERY_LENGTHS_INPUT + 1)
    inputs[0] = query
    inputs[1] = packed_heads(nodes, attention, attention.key, spec.kv_num_heads, spec.head_dim)
    inputs[2] = packed_heads(nodes, attention, attention.value, spec.kv_num_heads, spec.v_head_dim)
    inputs[3:5] = [attention.past_key, attention.past_value]
    masks = OperatorBias()
    if attention.nonpad_kv_seqlen is not None and _hides_only_padding(attention):
        masks = _by_lengths(nodes, lengths, attention.nonpad_kv_seqlen)
    elif not _is_causal(attention) or attention.attn_mask is not None:
        masks = bias_of(nodes, attention, lengths, opset=opset, options=options, by_sample=_has_free_lengths(attention))
        inputs[_BIAS_INPUT] = masks.bias
    inputs[5:7] = _counts(nodes, lengths, masks.last_keys)
    if attention.past_key is not None:
        inputs[_QUERY_LENGTHS_INPUT] = _of_each_sample(nodes, lengths, lengths.queries)
    while inputs[-1] is None:
        inputs.pop()
    outputs = nodes.many(
        _OPERATOR,
        *inputs,
        outputs=3,
        domain=CONTRIB_DOMAIN,
        shape=output_shape(attention),
        num_heads=spec.q_num_heads,
        kv_num_heads=spec.kv_num_heads,
        **_attributes(attention),
        **scale,
    )
    return FormOutputs(
        output=finish_output(nodes, attention, outputs[0], masks.rows),
        present_key=outputs[1],
        present_value=outputs[2],
    )


def _is_causal(attention: GraphAttention) -> bool:
    """Whether the operator's own causality can be used: lengths of the samples would shift its diagonal."""
    return bounds_of(attention.spec).right == 0 and attention.nonpad_kv_seqlen is None


def _not_causal(attention: GraphAttention) -> str:
    """Why an attention with a cache is not causal, and what to do."""
    band, mask = attention.mask_band, attention.attn_mask
    if mask is None:
        return f": use --form {Form.ORT_MHA}"
    if band.right != 0:
        return f", and the mask '{mask.name}' is not: use --form {Form.ORT_MHA}"
    return (
        f". The mask '{mask.name}' is causal except where padding hides every key of a query: use --no-empty-rows if "
        f"no input does that, else --form {Form.ORT_MHA}"
    )


def _attributes(attention: GraphAttention) -> dict[str, Any]:
    spec = attention.spec
    attributes: dict[str, Any] = {}
    if not _is_causal(attention):
        attributes["causal"] = 0
    elif spec.left_window >= 0:
        attributes["local_window_size"] = spec.left_window + 1
    if spec.softcap:
        attributes["softcap"] = spec.softcap
    return attributes


def _lengths_differ(attention: GraphAttention) -> str | None:
    """Why the numbers of new keys and queries may differ, or None.

    If the graph does not state them, the form is written, and the operator
    fails at run time if they differ.
    """
    if has_equal_lengths(attention) is not False:
        return None
    axis = attention.spec.layout.length_axis
    sizes = [stated_size(value, axis) for value in (attention.query, attention.key)]
    queries, keys = ("any number of" if size is None else size for size in sizes)
    return f"{_OPERATOR} needs as many new keys as queries: the graph has {queries} queries and {keys} keys."


def _hides_only_padding(attention: GraphAttention) -> bool:
    """Whether only lengths of the samples hide keys: those behind the first ones."""
    return attention.attn_mask is None and not bounds_of(attention.spec) and _has_free_lengths(attention)


def _by_lengths(nodes: Nodes, lengths: AttentionLengths, valid: ir.Value) -> OperatorBias:
    """The masks of `_hides_only_padding`: no bias. A sample without keys reads one, and its rows are set to zero."""
    one = nodes.constant(1, ir.DataType.INT64)
    count = nodes("Max", nodes("Min", valid, lengths.keys), one)
    rows = nodes("GreaterOrEqual", nodes("Reshape", valid, nodes.integers(-1, 1, 1, 1)), one, dtype=ir.DataType.BOOL)
    return OperatorBias(rows=rows, last_keys=nodes("Sub", count, one))


def _has_free_lengths(attention: GraphAttention) -> bool:
    """Whether the number of keys of a sample decides nothing but which keys are read.

    With a cache it is also the place of the new keys, and present keys after it are zero.
    """
    caches = (attention.past_key, attention.present_key, attention.present_value)
    return all(value is None for value in caches)


def _counts(nodes: Nodes, lengths: AttentionLengths, last: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """Number of keys of each sample minus one, and the largest number of keys."""
    if last is None:
        last = nodes("Sub", lengths.keys, nodes.constant(1, ir.DataType.INT64))
    total = nodes("Cast", lengths.keys, dtype=ir.DataType.INT32, to=int(ir.DataType.INT32))
    return _of_each_sample(nodes, lengths, last), total


def _of_each_sample(nodes: Nodes, lengths: AttentionLengths, count: ir.Value) -> ir.Value:
    number = nodes("Cast", count, dtype=ir.DataType.INT32, to=int(ir.DataType.INT32))
    return nodes("Expand", number, lengths.as_shape(lengths.batch))
