"""One standard `Attention` node of opset 23, 24 or 25; what its opset cannot say stands in a mask beside it.

Applies the workarounds that are asked for and knows of no runtime that needs them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import LowerOptions, Workaround
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.graph.attention_node import attributes_of
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.form_outputs import FormOutputs
from sdpa_onnx.graph.lower.mask_nodes import (
    WindowBounds,
    bounds_of,
    clamp_mask,
    merged,
    own_mask,
    spread,
    unknown_rank,
    visible_keys,
    whole_mask,
)
from sdpa_onnx.graph.lower.operands import AttentionLengths, heads_apart, scaled
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["build", "needed_opset", "refusal", "scales_query"]

# Source: ONNX Attention, opset 23 to 25: nonpad_kv_seqlen and short masks came with 24, windows with 25.
_FIRST_OPSET, _LENGTHS_OPSET, _WINDOW_OPSET = 23, 24, 25


def needed_opset(attention: GraphAttention, options: LowerOptions) -> int:  # noqa: ARG001  # every form is asked alike
    """Where the operator begins: what came later stands in a mask."""
    return _FIRST_OPSET


def refusal(attention: GraphAttention, *, opset: int, options: LowerOptions) -> str | None:  # noqa: ARG001
    """What the form cannot do: read a mask whose rank the graph does not state."""
    return unknown_rank(attention)


def build(nodes: Nodes, attention: GraphAttention, *, opset: int, options: LowerOptions) -> FormOutputs:
    """Write the node, its mask and what the workarounds ask for."""
    lengths, asked = AttentionLengths(nodes, attention), options.workarounds
    counts_keys = attention.nonpad_kv_seqlen is not None and opset >= _LENGTHS_OPSET
    beside = _beside(attention, opset, asked)
    mask = _mask(nodes, attention, lengths, beside, opset=opset, asked=asked)
    query, key, value, past_key, past_value = _operands(nodes, attention, lengths, asked)
    inputs = [query, key, value, mask, past_key, past_value, attention.nonpad_kv_seqlen if counts_keys else None]
    while inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, Any] = {**attributes_of(_said_by_the_node(attention.spec, beside, asked))}
    if attention.scores is not None:
        attributes["qk_matmul_output_mode"] = attention.scores_mode
    has_past = past_key is not None
    count = 4 if attention.scores is not None else (3 if has_past else 1)
    outputs = nodes.many("Attention", *inputs, outputs=count, **attributes)
    for unused in () if has_past else outputs[1:3]:
        unused.name, unused.type = "", None
    present_key, present_value = _presents(nodes, attention, outputs if has_past else ())
    return FormOutputs(
        output=outputs[0],
        present_key=present_key,
        present_value=present_value,
        scores=None if attention.scores is None else outputs[3],
    )


def _beside(attention: GraphAttention, opset: int, asked: frozenset[Workaround]) -> WindowBounds:
    """The bounds that the mask has to hold."""
    bounds = bounds_of(attention.spec)
    offset_unknown = attention.nonpad_kv_seqlen is not None and opset < _LENGTHS_OPSET
    if Workaround.CAUSAL_AS_MASK in asked or offset_unknown:
        return bounds
    if opset >= _WINDOW_OPSET:
        return WindowBounds(left=None, right=None)
    return WindowBounds(left=bounds.left, right=None if attention.spec.is_causal else bounds.right)


def _said_by_the_node(spec: AttentionSpec, beside: WindowBounds, asked: frozenset[Workaround]) -> AttentionSpec:
    """The spec less what stands beside the node."""
    return replace(
        spec,
        is_causal=spec.is_causal and beside.right is None,
        left_window=-1 if beside.left is not None else spec.left_window,
        right_window=-1 if beside or spec.is_causal else spec.right_window,
        scale=1.0 if scales_query(spec, asked) else spec.scale,
    )


def scales_query(spec: AttentionSpec, asked: frozenset[Workaround]) -> bool:
    """Where the scale stands: the operator's text takes its root, so a negative one never stands in the node."""
    return spec.scale_value < 0 or Workaround.SCALE_ON_QUERY in asked


def _mask(
    nodes: Nodes,
    attention: GraphAttention,
    lengths: AttentionLengths,
    beside: WindowBounds,
    *,
    opset: int,
    asked: frozenset[Workaround],
) -> ir.Value | None:
    with_lengths = attention.nonpad_kv_seqlen is not None and opset < _LENGTHS_OPSET
    visible = visible_keys(nodes, attention, lengths, bounds=beside, with_lengths=with_lengths)
    needs_all_keys = visible is not None or opset < _LENGTHS_OPSET or Workaround.EXPAND_MASK in asked
    mask = whole_mask(nodes, attention, lengths) if needs_all_keys else own_mask(nodes, attention)
    if mask is not None and Workaround.FINITE_MASK in asked:
        mask = clamp_mask(nodes, attention, mask)
    mask = merged(nodes, mask, visible)
    if mask is None or Workaround.EXPAND_MASK not in asked:
        return mask
    per_sample = attention.nonpad_kv_seqlen is not None and visible is not None
    return spread(nodes, attention, lengths, mask, bounds=beside, per_sample=per_sample)


def _operands(
    nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths, asked: frozenset[Workaround]
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value | None, ir.Value | None]:
    query, key, value = attention.query, attention.key, attention.value
    past_key, past_value = attention.past_key, attention.past_value
    if scales_query(attention.spec, asked):
        query = scaled(nodes, query, attention.spec.scale_value, attention.dtype)
    if Workaround.EQUAL_BATCH in asked:
        rank = 4 if attention.spec.layout is Layout.BNSH else 3
        key, value = (_per_sample(nodes, lengths, tensor, rank) for tensor in (key, value))
        if past_key is not None and past_value is not None:
            past_key, past_value = (_per_sample(nodes, lengths, tensor, 4) for tensor in (past_key, past_value))
    return query, key, value, past_key, past_value


def _per_sample(nodes: Nodes, lengths: AttentionLengths, tensor: ir.Value, rank: int) -> ir.Value:
    """Repeat what all samples share."""
    return nodes("Expand", tensor, lengths.as_shape(lengths.batch, *[1] * (rank - 1)))


def _presents(
    nodes: Nodes, attention: GraphAttention, outputs: Sequence[ir.Value]
) -> tuple[ir.Value | None, ir.Value | None]:
    """Keys and values, past and new: the node's own outputs, or without a past what came in."""
    if attention.present_key is None and attention.present_value is None:
        return None, None
    if outputs:
        return outputs[1], outputs[2]
    spec = attention.spec
    key = heads_apart(nodes, attention, attention.key, spec.kv_num_heads, spec.head_dim)
    return key, heads_apart(nodes, attention, attention.value, spec.kv_num_heads, spec.v_head_dim)
