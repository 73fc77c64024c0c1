"""Write one standard `Attention` node of opset 23, 24 or 25; features that the opset lacks become a computed mask.

Applies the requested workarounds, but does not know which runtimes need them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import LowerOptions, Workaround
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.attention.window_bounds import WindowBounds, bounds_of
from sdpa_onnx.graph.attention_node import attributes_of
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.form_outputs import FormOutputs
from sdpa_onnx.graph.lower.mask_nodes import (
    clamp_mask,
    combine_masks,
    expand_mask,
    own_mask,
    unknown_rank,
    visible_keys,
    whole_mask,
)
from sdpa_onnx.graph.lower.operands import AttentionLengths, scaled, split_heads
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["build", "needed_opset", "refusal", "scales_query"]

# Source: ONNX Attention: opset 24 adds nonpad_kv_seqlen and short masks, opset 25 adds windows.
_FIRST_OPSET, _LENGTHS_OPSET, _WINDOW_OPSET = 23, 24, 25


def needed_opset(attention: GraphAttention, options: LowerOptions) -> int:  # noqa: ARG001  # one signature for all forms
    """The first opset of the operator; later features become a mask."""
    return _FIRST_OPSET


def refusal(attention: GraphAttention, *, opset: int, options: LowerOptions) -> str | None:  # noqa: ARG001
    """Why the form cannot be written: the rank of the mask is unknown."""
    return unknown_rank(attention)


def build(nodes: Nodes, attention: GraphAttention, *, opset: int, options: LowerOptions) -> FormOutputs:
    """Write the node, its mask and the requested workarounds."""
    lengths, workarounds = AttentionLengths(nodes, attention), options.workarounds
    counts_keys = attention.nonpad_kv_seqlen is not None and opset >= _LENGTHS_OPSET
    mask_bounds = _mask_bounds(attention, opset, workarounds)
    mask = _mask(nodes, attention, lengths, mask_bounds, opset=opset, workarounds=workarounds)
    query, key, value, past_key, past_value = _operands(nodes, attention, lengths, workarounds)
    inputs = [query, key, value, mask, past_key, past_value, attention.nonpad_kv_seqlen if counts_keys else None]
    while inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, Any] = {**attributes_of(_node_spec(attention.spec, mask_bounds, workarounds))}
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


def _mask_bounds(attention: GraphAttention, opset: int, workarounds: frozenset[Workaround]) -> WindowBounds:
    """The window bounds that the mask must contain."""
    bounds = bounds_of(attention.spec)
    offset_unknown = attention.nonpad_kv_seqlen is not None and opset < _LENGTHS_OPSET
    if Workaround.CAUSAL_AS_MASK in workarounds or offset_unknown:
        return bounds
    if opset >= _WINDOW_OPSET:
        return WindowBounds(left=None, right=None)
    return WindowBounds(left=bounds.left, right=None if attention.spec.is_causal else bounds.right)


def _node_spec(spec: AttentionSpec, mask_bounds: WindowBounds, workarounds: frozenset[Workaround]) -> AttentionSpec:
    """The spec without the features that the mask or the query contains."""
    return replace(
        spec,
        is_causal=spec.is_causal and mask_bounds.right is None,
        left_window=-1 if mask_bounds.left is not None else spec.left_window,
        right_window=-1 if mask_bounds or spec.is_causal else spec.right_window,
        scale=1.0 if scales_query(spec, workarounds) else spec.scale,
    )


def scales_query(spec: AttentionSpec, workarounds: frozenset[Workaround]) -> bool:
    """Whether the scale is applied to the query: the operator takes its square root, so a negative one must be."""
    return spec.scale_value < 0 or Workaround.SCALE_ON_QUERY in workarounds


def _mask(
    nodes: Nodes,
    attention: GraphAttention,
    lengths: AttentionLengths,
    mask_bounds: WindowBounds,
    *,
    opset: int,
    workarounds: frozenset[Workaround],
) -> ir.Value | None:
    with_lengths = attention.nonpad_kv_seqlen is not None and opset < _LENGTHS_OPSET
    visible = visible_keys(nodes, attention, lengths, bounds=mask_bounds, with_lengths=with_lengths)
    needs_all_keys = visible is not None or opset < _LENGTHS_OPSET or Workaround.EXPAND_MASK in workarounds
    mask = whole_mask(nodes, attention, lengths) if needs_all_keys else own_mask(nodes, attention)
    if mask is not None and Workaround.FINITE_MASK in workarounds:
        mask = clamp_mask(nodes, attention, mask)
    mask = combine_masks(nodes, mask, visible)
    if mask is None or Workaround.EXPAND_MASK not in workarounds:
        return mask
    per_sample = attention.nonpad_kv_seqlen is not None and visible is not None
    return expand_mask(nodes, attention, lengths, mask, bounds=mask_bounds, per_sample=per_sample)


def _operands(
    nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths, workarounds: frozenset[Workaround]
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value | None, ir.Value | None]:
    query, key, value = attention.query, attention.key, attention.value
    past_key, past_value = attention.past_key, attention.past_value
    if scales_query(attention.spec, workarounds):
        query = scaled(nodes, query, attention.spec.scale_value, attention.dtype)
    if Workaround.EQUAL_BATCH in workarounds:
        rank = 4 if attention.spec.layout is Layout.BNSH else 3
        key, value = (_per_sample(nodes, lengths, tensor, rank) for tensor in (key, value))
        if past_key is not None and past_value is not None:
            past_key, past_value = (_per_sample(nodes, lengths, tensor, 4) for tensor in (past_key, past_value))
    return query, key, value, past_key, past_value


def _per_sample(nodes: Nodes, lengths: AttentionLengths, tensor: ir.Value, rank: int) -> ir.Value:
    """Expand a tensor that all samples share to the batch size."""
    return nodes("Expand", tensor, lengths.as_shape(lengths.batch, *[1] * (rank - 1)))


def _presents(
    nodes: Nodes, attention: GraphAttention, outputs: Sequence[ir.Value]
) -> tuple[ir.Value | None, ir.Value | None]:
    """Present keys and values: the node's outputs, or without a past its inputs."""
    if attention.present_key is None and attention.present_value is None:
        return None, None
    if outputs:
        return outputs[1], outputs[2]
    spec = attention.spec
    key = split_heads(nodes, attention, attention.key, spec.kv_num_heads, spec.head_dim)
    return key, split_heads(nodes, attention, attention.value, spec.kv_num_heads, spec.v_head_dim)
