"""What readers of dialects leave unsaid: causality that a mask proves, and key heads that were only repeated."""

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

__all__ = ["settle"]

# What causality says as well, or what says nothing: it may go.
_SAID_WITHOUT = (Causality.EXACTLY_CAUSAL, Causality.NOTHING_HIDDEN)
_CAUSAL = (Causality.EXACTLY_CAUSAL, Causality.CAUSAL_AND_MORE)
_ALMOST = (
    "its mask is causal but for rows that padding hides entirely: kept as a mask; convert --no-empty-rows lets it skip "
    "keys."
)
# The attribute `scale` is a float32.
_ROUNDOFF = 2.0**-24


def settle(
    search: GraphFacts, causal: CausalMasks, found: FoundAttention, *, rows_may_be_empty: bool = True
) -> FoundAttention:
    """The same attention, said with causality, grouped heads and a rule for its scale where it has them.

    Args:
        search: The graph; a mask without its causal part may be added to it.
        causal: Judges the masks of that graph.
        found: One attention, read or not.
        rows_may_be_empty: Whether padding may hide every key of a query. If not, a mask that hides later
            keys by a finite lowest number is causal too, and the attention says that it is taken to be so.
    """
    attention = found.attention
    if attention is None:
        return found
    attention = _with_rule(_with_groups(search, attention))
    known = _known(causal, attention)
    if known is None:
        return replace(found, attention=attention)
    if known is not Causality.LOWEST_AND_MORE:
        attention = _with_causality(search, causal, attention, known)
        sees_a_key = attention.attn_mask is None  # causality alone leaves every query the first key
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
    """Keys and values before their heads were repeated, where both were repeated alike and nothing else reads them."""
    spec = attention.spec
    used = (attention.past_key, attention.past_value, attention.present_key, attention.present_value)
    if spec.layout is not Layout.BNSH or any(value is not None for value in used):
        return attention
    (key, times), (value, again) = ungrouped(search, attention.key), ungrouped(search, attention.value)
    if times != again or times == 1:
        return attention
    return replace(attention, key=key, value=value, spec=replace(spec, kv_num_heads=spec.kv_num_heads // times))


def _known(causal: CausalMasks, attention: GraphAttention) -> Causality | None:
    """What the mask proves, where that may be said in another way; None where it may not."""
    spec, mask = attention.spec, attention.attn_mask
    has_cache = spec.has_past or attention.nonpad_kv_seqlen is not None
    if mask is None or spec.is_causal or spec.has_window or has_cache or attention.scores is not None:
        return None
    return causal.causality(mask, attention.key)


def _with_causality(
    search: GraphFacts, causal: CausalMasks, attention: GraphAttention, known: Causality
) -> GraphAttention:
    spec, mask = attention.spec, attention.attn_mask
    if mask is None:
        return attention
    is_causal, rest = known in _CAUSAL, None if known in _SAID_WITHOUT else mask
    if rest is not None and mask.dtype == ir.DataType.BOOL:
        parts = _conditions(mask)
        judged = [causal.causality(part, attention.key) for part in parts]
        kept = [part for part, one in zip(parts, judged, strict=True) if one not in _SAID_WITHOUT]
        is_causal = is_causal or any(one in _CAUSAL for one in judged)
        if len(kept) < len(parts) and all(_has_keys(search, part, mask) for part in kept):
            rest = _joined(search, attention, kept)
    kind = MaskKind.NONE if rest is None else spec.mask
    return replace(attention, attn_mask=rest, spec=replace(spec, is_causal=is_causal, mask=kind))


def _conditions(mask: ir.Value) -> list[ir.Value]:
    """What must all hold for a key to be seen."""
    node = mask.producer()
    if node is not None and node.op_type == "Expand" and is_standard(node) and node.inputs[0] is not None:
        return _conditions(node.inputs[0])
    if node is None or node.op_type != "And" or not is_standard(node):
        return [mask]
    return [part for value in node.inputs if value is not None for part in _conditions(value)]


def _has_keys(search: GraphFacts, condition: ir.Value, mask: ir.Value) -> bool:
    """Whether a condition is as wide as the mask: alone as a mask, one of a single column would hide the others."""
    own, whole = search.sizes_of(condition), search.sizes_of(mask)
    return own is not None and whole is not None and len(own) in (2, 4) and own[-1] != 1 and own[-1] == whole[-1]


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
