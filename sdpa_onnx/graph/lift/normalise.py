"""Normalise an attention that was read: replace masks by is_causal, undo repeated key heads, name the scale's rule.

Reads no dialect.
"""

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import Layout, MaskKind
from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.causality import Causality, CausalMasks
from sdpa_onnx.graph.lift.factors import Factor, scale_of
from sdpa_onnx.graph.lift.found import EVERY_QUERY_SEES_A_KEY, NAN_ROWS, FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.operands import ungrouped

__all__ = ["normalise_attention"]

# Masks that may be removed: is_causal replaces them, or they hide nothing.
_REDUNDANT = (Causality.EXACTLY_CAUSAL, Causality.NOTHING_HIDDEN)
_CAUSAL = (Causality.EXACTLY_CAUSAL, Causality.CAUSAL_AND_MORE)
_ALMOST = (
    "its mask is causal except for rows that padding hides entirely, so it is kept as a mask; convert --no-empty-rows "
    "allows is_causal, which skips keys."
)
# The attribute `scale` is a float32.
_ROUNDOFF = 2.0**-24


def normalise_attention(
    search: GraphFacts, causal: CausalMasks, found: FoundAttention, *, rows_may_be_empty: bool = True
) -> FoundAttention:
    """Rewrite an attention with is_causal, grouped key heads and a scale rule where they are equivalent.

    Args:
        search: The graph; a mask without its causal part may be added to it.
        causal: Proves causality of the masks of that graph.
        found: One attention; returned unchanged if it was not read.
        rows_may_be_empty: Whether padding may hide every key of a query. If not, a mask that hides later
            keys by a finite lowest number counts as causal too, and `assumes` of the result records it.
    """
    attention = found.attention
    if attention is None:
        return found
    attention = _with_rule(_with_groups(search, attention))
    proved = _proved(causal, attention)
    if proved is None:
        return replace(found, attention=attention)
    if proved is not Causality.LOWEST_AND_MORE:
        attention = _with_causality(search, causal, attention, proved)
        sees_a_key = attention.attn_mask is None  # with is_causal alone, every query sees the first key
        warnings = tuple(one for one in found.warnings if not (sees_a_key and one == NAN_ROWS))
        return replace(found, attention=attention, warnings=warnings)
    if rows_may_be_empty:
        return replace(found, attention=attention, warnings=(*found.warnings, _ALMOST))
    spec = replace(attention.spec, is_causal=True)
    return replace(found, attention=replace(attention, spec=spec), assumes=EVERY_QUERY_SEES_A_KEY)


def _with_rule(attention: GraphAttention) -> GraphAttention:
    spec = attention.spec
    if isinstance(spec.scale, str):
        return attention
    scale = scale_of(Factor(number=spec.scale, doubt=_ROUNDOFF), spec.head_dim)
    return replace(attention, spec=replace(spec, scale=scale))


def _with_groups(search: GraphFacts, attention: GraphAttention) -> GraphAttention:
    """Use keys and values from before their heads were repeated, if both were repeated equally, without a cache."""
    spec = attention.spec
    used = (attention.past_key, attention.past_value, attention.present_key, attention.present_value)
    if spec.layout is not Layout.BNSH or any(value is not None for value in used):
        return attention
    (key, times), (value, again) = ungrouped(search, attention.key), ungrouped(search, attention.value)
    if times != again or times == 1:
        return attention
    return replace(attention, key=key, value=value, spec=replace(spec, kv_num_heads=spec.kv_num_heads // times))


def _proved(causal: CausalMasks, attention: GraphAttention) -> Causality | None:
    """What is proved of the mask; None if the attention has no mask, or features with which it must stay."""
    spec, mask = attention.spec, attention.attn_mask
    has_cache = spec.has_past or attention.nonpad_kv_seqlen is not None
    if mask is None or spec.is_causal or spec.has_window or has_cache or attention.scores is not None:
        return None
    return causal.causality(mask, attention.key)


def _with_causality(
    search: GraphFacts, causal: CausalMasks, attention: GraphAttention, proved: Causality
) -> GraphAttention:
    spec, mask = attention.spec, attention.attn_mask
    if mask is None:
        return attention
    is_causal, rest = proved in _CAUSAL, None if proved in _REDUNDANT else mask
    if rest is not None and mask.dtype == ir.DataType.BOOL:
        parts = _conditions(mask)
        results = [causal.causality(part, attention.key) for part in parts]
        kept = [part for part, one in zip(parts, results, strict=True) if one not in _REDUNDANT]
        is_causal = is_causal or any(one in _CAUSAL for one in results)
        if len(kept) < len(parts) and all(_has_keys(search, part, mask) for part in kept):
            rest = _joined(search, attention, kept)
    kind = MaskKind.NONE if rest is None else spec.mask
    return replace(attention, attn_mask=rest, spec=replace(spec, is_causal=is_causal, mask=kind))


def _conditions(mask: ir.Value) -> list[ir.Value]:
    """The conditions that are combined by And: a key is visible if all hold."""
    node = mask.producer()
    if node is not None and node.op_type == "Expand" and is_standard(node) and node.inputs[0] is not None:
        return _conditions(node.inputs[0])
    if node is None or node.op_type != "And" or not is_standard(node):
        return [mask]
    return [part for value in node.inputs if value is not None for part in _conditions(value)]


def _has_keys(search: GraphFacts, condition: ir.Value, mask: ir.Value) -> bool:
    """Whether a condition has as many columns as the mask; used alone, a single column would hide the other keys."""
    own, mask_sizes = search.sizes_of(condition), search.sizes_of(mask)
    return (
        own is not None and mask_sizes is not None and len(own) in (2, 4) and own[-1] != 1 and own[-1] == mask_sizes[-1]
    )


def _joined(search: GraphFacts, attention: GraphAttention, conditions: Sequence[ir.Value]) -> ir.Value | None:
    if len(conditions) < 2:
        return next(iter(conditions), None)
    user = attention.output.producer()
    if user is None:
        return attention.attn_mask
    nodes = search.nodes_for(user)
    joined = conditions[0]
    for condition in conditions[1:]:
        joined = nodes("And", joined, condition)
    search.insert_before(user, nodes)
    return joined
