"""Read onnxruntime's `GroupQueryAttention`: packed or separate inputs, rotary embedding, window, cache and lengths.

If the graph proves that every sample fills its cache, past and present are those of the standard operator. Otherwise
nodes compute the buffer of keys, and a mask replaces lengths, causality and window. Refuses sinks, norms, quantised
caches and window-sized caches.

Source: onnxruntime docs/ContribOperators.md, com.microsoft version 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.contrib.cache import CacheLengths, buffer, lengths_of, valid_keys, visible_by_query
from sdpa_onnx.graph.lift.contrib.full_lengths import counts_queries, keys_fill_cache
from sdpa_onnx.graph.lift.contrib.mask import combine_masks, positions, size_of
from sdpa_onnx.graph.lift.contrib.node import ContribNode, ContribReading, NotReadError, dtype_of, read_each
from sdpa_onnx.graph.lift.contrib.operands import describe, split_last
from sdpa_onnx.graph.lift.contrib.rotary import Rotation, rotate
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.one_node import FORMAL_INPUTS

__all__ = ["read"]

_OPERATOR = (CONTRIB_DOMAIN, "GroupQueryAttention")
_FORMAL = (*FORMAL_INPUTS[_OPERATOR], "k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens")
_HIDDEN = float("-inf")
# A rotated column is the sum of two products: three roundings.
_ROTATION_TERMS = 3
_PADDED = (
    "The graph does not prove that every sample fills its cache: added nodes compute the buffer of keys, and a mask "
    "replaces lengths and causality. Rows after the new keys are 0 in its present outputs."
)


def read(search: GraphFacts) -> Iterator[FoundAttention]:
    """Find every GroupQueryAttention of onnxruntime."""
    yield from read_each(search, _OPERATOR, "onnxruntime GroupQueryAttention", _FORMAL, _read)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Query, key and value of rank 3, head counts and width."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    heads: int
    kv_heads: int
    width: int
    element: ir.DataType


def _read(one: ContribNode) -> ContribReading:
    _refuse(one)
    parts = _parts(one)
    is_causal, window = _causality(one)
    past_key, past_value = one.past()
    lengths = _lengths(one, one.need("query"), past_key)
    if one.integer("do_rotary") == 1:
        parts = _rotated(one, parts, past_key, lengths)
    spec = AttentionSpec(
        q_num_heads=parts.heads,
        kv_num_heads=parts.kv_heads,
        head_dim=parts.width,
        is_causal=is_causal,
        left_window=window - 1 if window > 0 else -1,
        softcap=one.number("softcap"),
        scale=one.scale,
        has_past=past_key is not None,
        layout=Layout.BSH,
    )
    attention = GraphAttention(
        name=one.search.attention_name(one.node),
        spec=spec,
        dtype=dtype_of(parts.query, "query"),
        query=parts.query,
        key=parts.key,
        value=parts.value,
        output=describe(one.node.outputs[0], parts.element, None, None, parts.heads * parts.width),
        past_key=past_key,
        past_value=past_value,
        present_key=_present(one, 1, parts),
        present_value=_present(one, 2, parts),
    )
    if one.integer("do_rotary") == 1:
        attention = replace(attention, cache_terms=_ROTATION_TERMS)
    if lengths is None:
        return ContribReading(attention=_masked(one, attention, None), warnings=one.past_warnings())
    if past_key is None and attention.present_key is None and attention.present_value is None:
        seen = valid_keys(one.nodes, lengths, size_of(one.nodes, parts.key, 1))
        return ContribReading(attention=_masked(one, attention, seen))
    return _buffered(one, attention, lengths, window)


def _lengths(one: ContribNode, query: ir.Value, past: ir.Value | None) -> CacheLengths | None:
    """The lengths of the samples; None if every sample provably fills its cache."""
    seqlens, valid = one.need("seqlens_k"), one.get("query_seqlens")
    if valid is not None and not counts_queries(one.search, valid, query):
        raise NotReadError("its query_seqlens may leave out queries, whose output the operator leaves unspecified")
    if keys_fill_cache(one.search, seqlens, query, past):
        return None
    return lengths_of(one.nodes, query, seqlens, one.need("total_sequence_length"))


def _refuse(one: ContribNode) -> None:
    """Raise `NotReadError` for features that the standard operator does not have."""
    one.refuse("head_sink", why="a term in the sum of the softmax that the standard operator does not have")
    one.refuse("k_scale", "v_scale", why="so its cache is quantised, which is not read")
    one.refuse("q_norm_weight", "k_norm_weight", why="a norm of queries and keys, which is not read")
    if one.integer("smooth_softmax", -1) == 1:
        raise NotReadError(
            "its smooth_softmax adds a term to the sum of the softmax, which the standard operator does not have"
        )
    if one.integer("sliding_window_cache") == 1:
        raise NotReadError("its cache holds only the last window of keys (sliding_window_cache), which is not read")
    if one.output(3) is not None and not one.search.keeps_outputs:
        raise NotReadError("its output output_qk is used, which the standard operator computes at another stage")


def _causality(one: ContribNode) -> tuple[bool, int]:
    """Whether it is causal, and the number of keys in its window, including the query's own; -1 = all."""
    window = one.integer("local_window_size", -1)
    if window == 0 or window < -1:
        raise NotReadError(f"its local_window_size is {window}, so no key is visible")
    match one.integer("causal", 1):
        case 1:
            return True, window
        case 0 if window < 1:
            return False, -1
        case 0:
            raise NotReadError("it has a local_window_size but is not causal")
        case other:
            raise NotReadError(f"its attribute causal is {other}, expected 0 or 1")


def _parts(one: ContribNode) -> _Parts:
    heads, kv_heads = one.positive("num_heads"), one.positive("kv_num_heads")
    query, key, value = one.need("query"), one.get("key"), one.get("value")
    dtype_of(query, "query")
    element = query.dtype or ir.DataType.FLOAT
    if one.rank(query, "query") != 3:
        raise NotReadError("the rank of its query is not 3")
    if key is None:
        one.refuse("value", why="but no key")
        width = one.heads_width(query, heads + 2 * kv_heads, "query")
        query, key, value = split_last(one.nodes, query, (heads * width, kv_heads * width, kv_heads * width))
    elif value is None:
        raise NotReadError("it has a key but no value")
    else:
        width = one.heads_width(query, heads, "query")
        for operand, name in ((key, "key"), (value, "value")):
            if one.heads_width(operand, kv_heads, name) != width:
                raise NotReadError(f"its query and {name} have heads of different width")
            describe(operand, element, None, None, kv_heads * width)
        describe(query, None, None, None, heads * width)
    return _Parts(query=query, key=key, value=value, heads=heads, kv_heads=kv_heads, width=width, element=element)


def _present(one: ContribNode, position: int, parts: _Parts) -> ir.Value | None:
    value = one.output(position)
    return None if value is None else describe(value, parts.element, None, parts.kv_heads, None, parts.width)


def _rotated(one: ContribNode, parts: _Parts, past: ir.Value | None, lengths: CacheLengths | None) -> _Parts:
    """Apply rotary embedding to query and key, before the cache, as the operator does."""
    nodes, cos, sin = one.nodes, one.get("cos_cache"), one.get("sin_cache")
    if cos is None or sin is None:
        raise NotReadError("it has do_rotary but no cos_cache and sin_cache")
    pairs = one.size(cos, -1, "cos_cache")
    if not 0 < 2 * pairs <= parts.width:
        raise NotReadError(f"its cos_cache rotates {2 * pairs} columns, but its heads have width {parts.width}")
    places = _query_positions(one, parts.query, past, lengths)
    turned = [nodes("Unsqueeze", nodes("Gather", table, places, axis=0), nodes.integers(2)) for table in (cos, sin)]
    rotation = Rotation(cos=turned[0], sin=turned[1], pairs=pairs, interleaved=one.integer("rotary_interleaved") == 1)
    return replace(
        parts,
        query=rotate(nodes, parts.query, rotation, heads=parts.heads, width=parts.width),
        key=rotate(nodes, parts.key, rotation, heads=parts.kv_heads, width=parts.width),
    )


def _query_positions(
    one: ContribNode, query: ir.Value, past: ir.Value | None, lengths: CacheLengths | None
) -> ir.Value:
    """The position of each query: (batch or 1, queries)."""
    position_ids, nodes = one.get("position_ids"), one.nodes
    rows = positions(nodes, size_of(nodes, query, 1))
    if position_ids is not None:
        return _explicit_positions(one, position_ids, query, rows)
    if lengths is not None:
        return nodes("Add", lengths.past, rows)
    if past is not None:
        rows = nodes("Add", rows, size_of(nodes, past, 2))
    return nodes("Unsqueeze", rows, nodes.integers(0))


def _explicit_positions(one: ContribNode, position_ids: ir.Value, query: ir.Value, rows: ir.Value) -> ir.Value:
    """`position_ids`; for a first prompt "the kernel uses only the first element" and counts from it."""
    nodes, int64 = one.nodes, ir.DataType.INT64
    if one.get("query_seqlens") is not None:  # with it, the kernel does not distinguish a prompt from a later chunk
        return position_ids
    longest = nodes("Cast", one.need("total_sequence_length"), dtype=int64, to=int(int64))
    is_prompt = nodes(
        "Equal", nodes("Reshape", longest, nodes.integers(1)), size_of(nodes, query, 1), dtype=ir.DataType.BOOL
    )
    first = nodes("Slice", nodes("Reshape", position_ids, nodes.integers(-1)), nodes.integers(0), nodes.integers(1))
    return nodes("Where", is_prompt, nodes("Add", first, rows), position_ids, dtype=int64)


def _masked(one: ContribNode, attention: GraphAttention, seen: ir.Value | None) -> GraphAttention:
    """The attention with a mask of the visible keys and the added bias."""
    element = attention.query.dtype or ir.DataType.FLOAT
    mask = combine_masks(one.nodes, seen=seen, bias=one.of_rank("attention_bias", 4), fill=_HIDDEN, element=element)
    return replace(attention, spec=replace(attention.spec, mask=mask.kind), attn_mask=mask.value)


def _buffered(one: ContribNode, attention: GraphAttention, lengths: CacheLengths, window: int) -> ContribReading:
    """The attention over a buffer of each sample's past and new keys; a mask replaces causality and window."""
    spec, nodes = attention.spec, one.nodes
    heads, width = spec.kv_num_heads, spec.head_dim
    key, present_key = buffer(nodes, attention.key, attention.past_key, lengths, heads=heads, width=width)
    value, present_value = buffer(nodes, attention.value, attention.past_value, lengths, heads=heads, width=width)
    seen = visible_by_query(nodes, lengths, is_causal=spec.is_causal, window=window)
    old = (attention.present_key, attention.present_value)
    plain = replace(
        attention,
        spec=replace(spec, is_causal=False, left_window=-1, has_past=False),
        key=key,
        value=value,
        past_key=None,
        past_value=None,
        present_key=None,
        present_value=None,
        cache_lengths=nodes("Add", lengths.past, lengths.queries) if one.search.keeps_outputs else None,
    )
    pairs = zip(old, (present_key, present_value), strict=True)
    return ContribReading(
        attention=_masked(one, plain, seen),
        warnings=(_PADDED, *one.past_warnings()),
        replaced=tuple((value, new) for value, new in pairs if value is not None),
    )
