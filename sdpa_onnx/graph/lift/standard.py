"""Read standard ONNX `Attention` nodes of opset 23 to 28, which are the canonical form already.

Uses attributes and inferred shapes. Does not keep `softmax_precision`; a warning reports it.
"""

from collections.abc import Iterator

import onnx_ir as ir

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES
from sdpa_onnx.core.attention.mask_rule import mask_rule_of
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.graph.attention_node import spec_or_reason
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.contrib.node import ContribNode, ContribReading, NotReadError, dtype_of, read_each
from sdpa_onnx.graph.lift.contrib.operands import describe
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts

__all__ = ["read"]

_FORMAL = tuple(ONNX_INPUT_NAMES.values())
_OPERANDS = _FORMAL[:3]
_MODES = range(4)


def read(search: GraphFacts) -> Iterator[FoundAttention]:
    """Find every standard Attention node."""
    yield from read_each(search, ("", "Attention"), "ONNX Attention", _FORMAL, _read)


def _read(one: ContribNode) -> ContribReading:
    query, key, value = (one.need(name) for name in _OPERANDS)
    spec = _spec(one)
    dtype = dtype_of(query, "Q")
    mask = one.get("attn_mask")
    if mask is not None and mask.dtype not in (ir.DataType.BOOL, query.dtype):
        name = "unknown" if mask.dtype is None else mask.dtype.name
        raise NotReadError(
            f"the element type of its attn_mask '{mask.name}' is {name}, neither BOOL nor that of its Q (cast it; True "
            "shows a key)"
        )
    past_key, past_value = one.past()
    mode = one.integer("qk_matmul_output_mode")
    if mode not in _MODES:
        raise NotReadError(f"its qk_matmul_output_mode is {mode}, expected 0, 1, 2 or 3")
    attention = GraphAttention(
        name=one.search.attention_name(one.node),
        spec=spec,
        dtype=dtype,
        query=query,
        key=key,
        value=value,
        output=_output(one, spec),
        attn_mask=mask,
        past_key=past_key,
        past_value=past_value,
        nonpad_kv_seqlen=one.get("nonpad_kv_seqlen"),
        present_key=one.output(1),
        present_value=one.output(2),
        scores=one.output(3),
        scores_mode=mode,
        mask_rule=mask_rule_of(one.search.opset),
    )
    return ContribReading(attention=attention, warnings=_doubts(one, query.dtype))


def _output(one: ContribNode, spec: AttentionSpec) -> ir.Value:
    output = one.node.outputs[0]
    if spec.layout is Layout.BNSH:
        return describe(output, one.need("Q").dtype, None, spec.q_num_heads, None, spec.v_head_dim)
    return describe(output, one.need("Q").dtype, None, None, spec.q_num_heads * spec.v_head_dim)


def _doubts(one: ContribNode, element: ir.DataType | None) -> tuple[str, ...]:
    requested = one.integer("softmax_precision")
    if not requested or requested == element:
        return ()
    name = ir.DataType(requested).name
    return (f"Its softmax_precision, {name}, is not kept: the runtime computes in its own precision.",)


def _spec(one: ContribNode) -> AttentionSpec:
    """The spec of the node.

    Raises:
        NotReadError: If a part of it is invalid or unknown; names the first.
    """
    spec = spec_or_reason(one.node)
    if isinstance(spec, str):
        raise NotReadError(spec)
    key, value = _dims(one, "K"), _dims(one, "V")
    is_flat = spec.layout is Layout.BSH
    if key[-1] is None or (not is_flat and value[1] not in (None, key[1])):
        raise NotReadError("its K and V have different numbers of heads, or a width that is not static")
    if key[-1] != spec.head_dim * (spec.kv_num_heads if is_flat else 1):
        raise NotReadError("its Q and K have heads of different widths")
    return spec


def _dims(one: ContribNode, name: str) -> tuple[int | None, ...]:
    dims = one.search.dims_of(one.need(name))
    if dims is None:
        raise NotReadError(f"the shape of its {name} is unknown")
    return dims
