"""Read onnxruntime's own `Attention`, which includes the input projection; the projection becomes separate nodes.

Refuses a shared buffer, rotary embedding, and Megatron's mask of rank 4.

Source: onnxruntime docs/ContribOperators.md, com.microsoft version 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.contrib.mask import combine_masks, fill_of, size_of, visible_from_bounds, visible_from_mask
from sdpa_onnx.graph.lift.contrib.node import ContribNode, ContribReading, NotReadError, dtype_of, read_each
from sdpa_onnx.graph.lift.contrib.operands import describe, split_last
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.nodes import Nodes
from sdpa_onnx.graph.one_node import FORMAL_INPUTS

__all__ = ["read"]

_OPERATOR = (CONTRIB_DOMAIN, "Attention")


def read(search: GraphFacts) -> Iterator[FoundAttention]:
    """Find every Attention of onnxruntime's own domain."""
    yield from read_each(search, _OPERATOR, "onnxruntime Attention", FORMAL_INPUTS[_OPERATOR], _read)


def _read(one: ContribNode) -> ContribReading:
    heads = one.positive("num_heads")
    _refuse(one)
    dtype = dtype_of(one.need("input"), "input")
    element = one.need("input").dtype or ir.DataType.FLOAT
    widths = _widths(one)
    head_dim, v_head_dim = one.part(widths[0], heads, "query"), one.part(widths[2], heads, "value")
    query, key, value = _project(one, widths)
    past = one.of_rank("past", 5)
    past_key, past_value = (None, None) if past is None else _split_past(one.nodes, past)
    seen = _seen(one, query, past_key)
    mask = combine_masks(
        one.nodes, seen=seen, bias=one.of_rank("attention_bias", 4), fill=fill_of(one, dtype), element=element
    )
    spec = AttentionSpec(
        q_num_heads=heads,
        kv_num_heads=heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        is_causal=one.integer("unidirectional") == 1,
        mask=mask.kind,
        scale=one.scale,
        has_past=past is not None,
        layout=Layout.BSH,
    )
    attention = GraphAttention(
        name=one.search.attention_name(one.node),
        spec=spec,
        dtype=dtype,
        query=query,
        key=key,
        value=value,
        output=describe(one.node.outputs[0], element, None, None, widths[2]),
        attn_mask=mask.value,
        past_key=past_key,
        past_value=past_value,
    )
    if one.search.keeps_outputs and one.output(1) is not None:
        # A product of as many terms as the input has columns, and the bias.
        terms = one.size(one.need("weights"), 0, "weights") + 1
        attention = replace(attention, cache_magnitudes=_magnitudes(one), cache_terms=terms)
        return ContribReading(attention=attention)
    return _with_present(one, attention)


def _refuse(one: ContribNode) -> None:
    one.refuse("past_sequence_length", why="that is, one buffer for past and present keys, which is not read")
    if one.integer("past_present_share_buffer") == 1:
        raise NotReadError("its past and present share one buffer, which is not read")
    if one.integer("do_rotary") == 1:
        raise NotReadError("its rotary embedding (do_rotary) uses angles that are not in the file")


def _widths(one: ContribNode) -> Sequence[int]:
    """Numbers of weight columns of query, key and value."""
    weights = one.search.dims_of(one.need("weights"))
    columns = weights[-1] if weights is not None and len(weights) == 2 else None
    if columns is None:
        raise NotReadError("the shape of its weights is unknown")
    attribute = one.node.attributes.get("qkv_hidden_sizes")
    if attribute is None:
        return [_third(columns)] * 3
    if attribute.type is not ir.AttributeType.INTS or len(attribute.as_ints()) != 3:
        raise NotReadError("its attribute qkv_hidden_sizes is not a list of three integers")
    widths = list(attribute.as_ints())
    if sum(widths) != columns or widths[0] != widths[1] or min(widths) < 1:
        raise NotReadError(f"its qkv_hidden_sizes are {widths}, which do not fit weights of {columns} columns")
    return widths


def _third(columns: int) -> int:
    if columns % 3:
        raise NotReadError(f"its weights have {columns} columns, not a multiple of 3")
    return columns // 3


def _project(one: ContribNode, widths: Sequence[int]) -> Sequence[ir.Value]:
    """Query, key and value of rank 3."""
    nodes, rows, bias = one.nodes, one.need("input"), one.get("bias")
    if one.search.dims_of(rows) is not None and len(one.search.dims_of(rows) or ()) != 3:
        raise NotReadError("the rank of its input is not 3")
    shape = ir.Shape([None, None, sum(widths)])
    joined = nodes("MatMul", rows, one.need("weights"), dtype=rows.dtype, shape=shape)
    if bias is not None:
        joined = nodes("Add", joined, bias, dtype=rows.dtype, shape=shape)
    return split_last(nodes, joined, widths)


def _magnitudes(one: ContribNode) -> ir.Value:
    """The projection of the magnitudes: (batch, length, columns), an upper limit of every sum in it."""
    nodes, bias = one.nodes, one.get("bias")
    rows, weights = (nodes("Abs", one.need(name)) for name in ("input", "weights"))
    sums = nodes("MatMul", rows, weights, dtype=one.need("input").dtype)
    return sums if bias is None else nodes("Add", sums, nodes("Abs", bias), dtype=sums.dtype)


def _split_past(nodes: Nodes, past: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Split a past of (2, batch, heads, length, width) into keys and values."""
    first, second = (
        nodes("Gather", past, nodes.constant(half, ir.DataType.INT64), axis=0, shape=_half_shape(past))
        for half in (0, 1)
    )
    return first, second


def _half_shape(past: ir.Value) -> ir.Shape:
    return ir.Shape([None] * 4) if past.shape is None else ir.Shape(list(past.shape)[1:])


def _seen(one: ContribNode, query: ir.Value, past_key: ir.Value | None) -> ir.Value | None:
    """Which keys the mask shows."""
    mask, nodes = one.get("mask_index"), one.nodes
    if mask is None:
        return None
    dims = one.search.dims_of(mask)
    match None if dims is None else len(dims):
        case 1:
            keys = size_of(nodes, query, 1)
            if past_key is not None:
                keys = nodes("Add", keys, size_of(nodes, past_key, 2))
            return visible_from_bounds(nodes, mask, batch=size_of(nodes, query, 0), keys=keys, has_starts=True)
        case 2 if dims is not None and dims[1] == 1:
            return None  # "dummy mask": onnxruntime's shape checks treat a single column as no mask
        case 2 | 3 as rank:
            return visible_from_mask(nodes, mask, rank)
        case 4:
            raise NotReadError(
                f"its mask_index '{mask.name}' has 4 axes (Megatron's mask), which is not read (use 3: batch, queries, "
                "keys)"
            )
        case _:
            raise NotReadError(f"the rank of its mask_index '{mask.name}' is unknown (declare its shape in the file)")


def _with_present(one: ContribNode, attention: GraphAttention) -> ContribReading:
    """Compute present keys and values as two values, and the operator's single present output from them."""
    output, nodes, spec = one.output(1), one.nodes, attention.spec
    if output is None:
        return ContribReading(attention=attention)
    presents = []
    for new, past, width in (
        (attention.key, attention.past_key, spec.head_dim),
        (attention.value, attention.past_value, spec.v_head_dim),
    ):
        apart = nodes("Reshape", new, nodes.integers(0, 0, spec.kv_num_heads, width))
        shape = ir.Shape([None, spec.kv_num_heads, None, width])
        heads_first = nodes("Transpose", apart, perm=[0, 2, 1, 3], shape=shape)
        presents.append(heads_first if past is None else nodes("Concat", past, heads_first, axis=2, shape=shape))
    stacked = nodes("Concat", *(nodes("Unsqueeze", half, nodes.integers(0)) for half in presents), axis=0)
    return ContribReading(
        attention=replace(attention, present_key=presents[0], present_value=presents[1]),
        replaced=((output, stacked),),
    )
