"""Normalise an attention that was read: causality, windows, grouped key heads and a scale rule where equivalent.

Reads no dialect.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout, MaskKind
from sdpa_onnx.core.attention.window_bounds import WindowBounds, bounds_of
from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.factors import Factor, scale_of
from sdpa_onnx.graph.lift.found import EVERY_QUERY_SEES_A_KEY, NAN_ROWS, FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.masks.band_trial import MaskReading, Proved
from sdpa_onnx.graph.lift.masks.cached_bands import CachedKeys
from sdpa_onnx.graph.lift.masks.mask_bands import MaskBands
from sdpa_onnx.graph.lift.operands import ungrouped
from sdpa_onnx.graph.subgraphs import inputs_within

__all__ = ["normalise_attention"]

_Reading = Callable[[ir.Value], MaskReading]

# Operators between keys and the products of an attention.
_READ_KEYS = frozenset(["Cast", "Expand", "Identity", "MatMul", "Mul", "Reshape", "Transpose", "Unsqueeze"])
# Masks that may be removed: causality and windows replace them, or they hide nothing.
_REDUNDANT = (Proved.EXACTLY_BAND, Proved.NOTHING_HIDDEN)
_BANDS = (Proved.EXACTLY_BAND, Proved.BAND_AND_MORE)
# The attribute `scale` is a float32.
_ROUNDOFF = 2.0**-24


def normalise_attention(
    search: GraphFacts, bands: MaskBands, found: FoundAttention, *, rows_may_be_empty: bool = True
) -> FoundAttention:
    """Rewrite an attention with causality, windows, grouped key heads and a scale rule where they are equivalent.

    A mask that hides by a finite lowest number is kept, and its band is noted in `mask_band`: causality would change
    the queries whose keys are all hidden.

    Args:
        search: The graph; a mask without its causal part may be added to it.
        bands: Proves the bands of the masks of that graph.
        found: One attention; returned unchanged if it was not read.
        rows_may_be_empty: Whether padding may hide every key of a query. If not, a mask that hides by a finite
            lowest number becomes causality and windows too, and `assumes` of the result records it.
    """
    attention = found.attention
    if attention is None:
        return found
    attention = _with_rule(_with_groups(search, attention))
    mask = attention.attn_mask
    if mask is None or not _may_have_band(attention):
        return replace(found, attention=attention)
    attention, read = _with_cache(search, bands, attention, mask)
    reading = read(mask)
    if reading.proved is Proved.NOTHING:
        return replace(found, attention=attention)
    if reading.proved is Proved.LOWEST_AND_MORE and rows_may_be_empty:
        return replace(found, attention=_without_cycle(replace(attention, mask_band=reading.band)))
    if reading.proved is Proved.LOWEST_AND_MORE:
        attention = replace(attention, spec=_within(attention.spec, reading.band), is_bound_by_mask=True)
        return replace(found, attention=_without_cycle(attention), assumes=EVERY_QUERY_SEES_A_KEY)
    attention = _without_cycle(_with_band(search, read, attention, reading))
    # With causality alone, every query sees the first key.
    sees_a_key = attention.attn_mask is None and attention.spec.left_window < 0
    warnings = tuple(one for one in found.warnings if not (sees_a_key and one == NAN_ROWS))
    return replace(found, attention=attention, warnings=warnings)


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


def _may_have_band(attention: GraphAttention) -> bool:
    """Whether its mask may be replaced: it has no features with which the mask must stay."""
    has_cache = attention.spec.has_past or attention.nonpad_kv_seqlen is not None
    # A key whose hidden score is rounded to an integer has a weight.
    has_weight = bool(attention.quantisers.masked)
    return not (bounds_of(attention.spec) or has_cache or has_weight or attention.scores is not None)


def _with_cache(
    search: GraphFacts, bands: MaskBands, attention: GraphAttention, mask: ir.Value
) -> tuple[GraphAttention, _Reading]:
    """The attention and how its masks are read: with its cache as inputs if the mask is aligned to the cached keys."""

    def plain(value: ir.Value) -> MaskReading:
        return bands.reading(value, attention.key)

    key, value = _cached(search, attention.key), _cached(search, attention.value)
    if key is None or value is None or attention.spec.layout is not Layout.BNSH:
        return attention, plain
    alike = ((key.past, value.past), (key.new, value.new))
    lengths = [[(search.sizes_of(one) or ())[2:3] for one in pair] for pair in alike]
    if any(one != other or not one for one, other in lengths) or plain(mask).proved is not Proved.NOTHING:
        return attention, plain

    def cached(value: ir.Value) -> MaskReading:
        return bands.cached_reading(value, key)

    if not cached(mask).band:
        return attention, plain
    split = replace(
        attention,
        key=key.new,
        value=value.new,
        past_key=key.past,
        past_value=value.past,
        present_key=key.joined,
        present_value=value.joined,
        spec=replace(attention.spec, has_past=True),
    )
    return split, cached


def _without_cycle(attention: GraphAttention) -> GraphAttention:
    """The attention without its joined keys as outputs where its own inputs depend on them, as on their length."""
    joined = [value for value in (attention.present_key, attention.present_value) if value is not None]
    readers = {node.op_type for value in joined for node, _ in value.uses()}
    if readers <= _READ_KEYS:
        return attention
    seen: set[ir.Value] = set()
    stack = [one for one in (attention.query, attention.key, attention.value, attention.attn_mask) if one is not None]
    while stack:
        value = stack.pop()
        if value in joined:
            return replace(attention, present_key=None, present_value=None)
        node = value.producer()
        if value not in seen and node is not None:
            stack += inputs_within(node)
        seen.add(value)
    return attention


def _cached(search: GraphFacts, value: ir.Value) -> CachedKeys | None:
    """The parts of keys or values that are joined from cached and new ones along their length."""
    node, sizes = value.producer(), search.sizes_of(value)
    if node is None or node.op_type != "Concat" or not is_standard(node) or sizes is None or len(sizes) != 4:
        return None
    parts = [one for one in node.inputs if one is not None]
    axis = node.attributes.get("axis")
    if len(parts) != 2 or axis is None or axis.as_int() not in (2, -2):
        return None
    return CachedKeys(past=parts[0], new=parts[1], joined=value)


def _within(spec: AttentionSpec, band: WindowBounds) -> AttentionSpec:
    """The spec with the bounds of a band in addition to its own."""
    both = bounds_of(spec) & band
    right = -1 if both.right is None or both.right == 0 else both.right
    left = -1 if both.left is None else both.left
    return replace(spec, is_causal=both.right == 0, left_window=left, right_window=right)


def _with_band(search: GraphFacts, read: _Reading, attention: GraphAttention, reading: MaskReading) -> GraphAttention:
    spec, mask = attention.spec, attention.attn_mask
    if mask is None:
        return attention
    spec, rest = _within(spec, reading.band), None if reading.proved in _REDUNDANT else mask
    is_bound = rest is not None
    if rest is not None and mask.dtype == ir.DataType.BOOL:
        parts = _conditions(mask)
        results = [read(part) for part in parts]
        kept = [part for part, one in zip(parts, results, strict=True) if one.proved not in _REDUNDANT]
        for one in results:
            spec = _within(spec, one.band) if one.proved in _BANDS else spec
        if len(kept) < len(parts) and all(_has_keys(search, part, mask) for part in kept):
            rest = _joined(search, attention, kept)
            is_bound = any(one.band and one.proved not in _REDUNDANT for one in results)
    kind = MaskKind.NONE if rest is None else spec.mask
    return replace(attention, attn_mask=rest, spec=replace(spec, mask=kind), is_bound_by_mask=is_bound)


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
