"""Read onnxruntime's `MultiHeadAttention`: separate, packed and cached inputs, with all of its masks.

Refuses a shared buffer of past and present keys, beam search, and the fourth output.

Source: onnxruntime docs/ContribOperators.md, com.microsoft version 1.
"""

from collections.abc import Iterator

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.contrib.mask import combine_masks, fill_of, size_of, visible_from_bounds, visible_from_mask
from sdpa_onnx.graph.lift.contrib.mha_operands import read_operands
from sdpa_onnx.graph.lift.contrib.node import ContribNode, ContribReading, NotReadError, dtype_of, read_each
from sdpa_onnx.graph.lift.contrib.operands import ContribOperands, describe
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.one_node import FORMAL_INPUTS

__all__ = ["read"]

_OPERATOR = (CONTRIB_DOMAIN, "MultiHeadAttention")
_ALIGNMENT = (
    "Its numbers of queries and keys may differ. It is read as the operator's specification says: query i sees the "
    "keys up to i. In onnxruntime's CPU kernel the last query sees every key instead."
)
_STARTS = "Its key_padding_mask may hold starts (3 x samples + 2 numbers); it is read as that of padded samples."


def read(search: GraphFacts) -> Iterator[FoundAttention]:
    """Find every MultiHeadAttention of onnxruntime."""
    yield from read_each(search, _OPERATOR, "onnxruntime MultiHeadAttention", FORMAL_INPUTS[_OPERATOR], _read)


def _read(one: ContribNode) -> ContribReading:
    heads = one.positive("num_heads")
    one.refuse("past_sequence_length", why="that is, one buffer for past and present keys, which is not read")
    one.refuse("cache_indirection", why="for beam search, which is not read")
    if one.output(3) is not None and not one.search.keeps_outputs:
        raise NotReadError(
            "its output qk is used, and the operator's specification does not name its stage of the scores"
        )
    dtype = dtype_of(one.need("query"), "query")
    operands = read_operands(one, heads)
    past_key, past_value = one.past()
    element = operands.query.dtype or ir.DataType.FLOAT
    seen, warnings = _seen(one, operands, past_key)
    mask = combine_masks(
        one.nodes,
        seen=seen,
        bias=one.of_rank("attention_bias", 4),
        fill=fill_of(one, dtype),
        element=element,
    )
    is_causal = one.integer("unidirectional") == 1
    if is_causal and not operands.equally_long:
        warnings = (*warnings, _ALIGNMENT)
    spec = AttentionSpec(
        q_num_heads=heads,
        kv_num_heads=heads,
        head_dim=operands.head_dim,
        v_head_dim=operands.v_head_dim,
        is_causal=is_causal,
        mask=mask.kind,
        scale=one.scale,
        has_past=past_key is not None,
        layout=Layout.BSH,
    )
    attention = GraphAttention(
        name=one.search.attention_name(one.node),
        spec=spec,
        dtype=dtype,
        query=operands.query,
        key=operands.key,
        value=operands.value,
        output=describe(one.node.outputs[0], element, None, None, heads * operands.v_head_dim),
        attn_mask=mask.value,
        past_key=past_key,
        past_value=past_value,
        present_key=_present(one, 1, element, heads, operands.head_dim),
        present_value=_present(one, 2, element, heads, operands.v_head_dim),
    )
    return ContribReading(attention=attention, warnings=(*warnings, *one.past_warnings()))


def _present(one: ContribNode, position: int, element: ir.DataType, heads: int, width: int) -> ir.Value | None:
    value = one.output(position)
    return None if value is None else describe(value, element, None, heads, None, width)


def _seen(
    one: ContribNode, operands: ContribOperands, past: ir.Value | None
) -> tuple[ir.Value | None, tuple[str, ...]]:
    """The keys that the padding mask leaves visible, and warnings about the mask."""
    mask, nodes = one.get("key_padding_mask"), one.nodes
    if mask is None:
        return None, ()
    dims = one.search.dims_of(mask)
    if dims is None or len(dims) not in (1, 2, 3):
        axes = "an unknown number of" if dims is None else len(dims)
        raise NotReadError(
            f"its key_padding_mask '{mask.name}' has {axes} axes instead of 1, 2 or 3 (declare its shape in the file, "
            "or use attention_bias for a mask of 4 axes)"
        )
    if len(dims) > 1:
        return visible_from_mask(nodes, mask, len(dims)), ()
    keys = size_of(nodes, operands.key, 1)
    if past is not None:
        keys = nodes("Add", keys, size_of(nodes, past, 2))
    batch = size_of(nodes, operands.query, 0)
    is_lengths = one.same_size(mask, 0, operands.query, 0)
    return visible_from_bounds(nodes, mask, batch=batch, keys=keys), () if is_lengths else (_STARTS,)
