"""ONNX `Attention` nodes to and from specs: the canonical form of every attention.

Reads nodes of opset 23 to 25 and writes one-node models; judges nothing.
"""

from typing import Literal

import onnx_ir as ir

from sdpa_onnx.core.inputs import ONNX_INPUT_NAMES
from sdpa_onnx.core.spec import AttentionSpec, Dtype, Layout, MaskKind, ScaleRule
from sdpa_onnx.errors import CaseError, ExportError
from sdpa_onnx.graph.site import AttentionSite

__all__ = ["attributes_of", "build_attention_model", "minimum_opset", "sites_of_nodes", "usual_form"]

# Where the Attention operator begins.
_FIRST_OPSET = 23

_ELEMENT_TYPES = {
    Dtype.FLOAT64: ir.DataType.DOUBLE,
    Dtype.FLOAT32: ir.DataType.FLOAT,
    Dtype.FLOAT16: ir.DataType.FLOAT16,
    Dtype.BFLOAT16: ir.DataType.BFLOAT16,
}


def minimum_opset(spec: AttentionSpec) -> int:
    """Lowest opset whose Attention operator expresses the spec: 23, 24 or 25.

    Source: ONNX Attention; nonpad_kv_seqlen came with 24, windows with 25.
    """
    if spec.has_window:
        return 25
    return 24 if spec.mask is MaskKind.LENGTHS else 23


def usual_form(spec: AttentionSpec | None, opset: int) -> Literal["attention", "decomposed"]:
    """The form that an opset has for a spec: one Attention node where it can say it, else the formula.

    Below the opset that has a feature, a mask computed beside the node stands
    for it; with a softcap the exporter has no such way.

    Args:
        spec: A bare attention, or None for a module.
        opset: 18 to 25.
    """
    beyond = spec is not None and bool(spec.softcap) and opset < minimum_opset(spec)
    return "attention" if opset >= _FIRST_OPSET and not beyond else "decomposed"


def build_attention_model(spec: AttentionSpec, *, opset: int, dtype: Dtype) -> ir.Model:
    """Write a model of one Attention node with dynamic sizes.

    Inputs are Q, K, V and, as the spec has them, attn_mask, past_key,
    past_value, nonpad_kv_seqlen; outputs are Y and, with a past, present_key
    and present_value. Heads and widths are static; batch and lengths are not.

    Args:
        spec: What it computes.
        opset: 23, 24 or 25.
        dtype: Element type of query, key, value and output.

    Raises:
        ExportError: If the operator of that opset cannot express the spec.

    Source: ONNX Attention, opset 23 to 25.
    """
    needed = minimum_opset(spec)
    if not needed <= opset <= 25:
        raise ExportError(
            f"The Attention operator of opset {opset} cannot express this attention.",
            hint=f"Use an opset from {needed} to 25.",
        )
    element = _ELEMENT_TYPES[dtype]
    inputs = {name: ir.Value(name=name, type=ir.TensorType(t), shape=s) for name, t, s in _inputs(spec, element)}
    ordered = [inputs.get(name) for name in ONNX_INPUT_NAMES.values()]
    while ordered and ordered[-1] is None:
        ordered.pop()
    output_names = ("Y", "present_key", "present_value") if spec.has_past else ("Y",)
    node = ir.node(
        "Attention", ordered, attributes=attributes_of(spec), num_outputs=len(output_names), name="attention"
    )
    for name, shape, value in zip(output_names, _output_shapes(spec), node.outputs, strict=False):
        value.name, value.type, value.shape = name, ir.TensorType(element), shape
    graph = ir.Graph(
        list(inputs.values()), list(node.outputs), nodes=[node], opset_imports={"": opset}, name="attention"
    )
    return ir.Model(graph, ir_version=_ir_version(opset), producer_name="sdpa_onnx")


def sites_of_nodes(model: ir.Model) -> tuple[AttentionSite, ...]:
    """Describe every standard Attention node whose figures the graph states.

    Heads and widths are read from attributes (3-D) or static shapes (4-D); a
    node whose shapes are unknown is left out, see `inspect`.
    """
    found: list[AttentionSite] = []
    for node in model.graph:
        if node.op_type == "Attention" and node.domain == "":
            spec = spec_of_node(node)
            if spec is not None:
                found.append(_site(node, spec, f"attention_{len(found)}"))
    return tuple(found)


def spec_of_node(node: ir.Node) -> AttentionSpec | None:
    """Read the spec of an Attention node, or None where heads or widths are unknown or the node is malformed."""
    try:
        return _read_spec(node)
    except (CaseError, TypeError):  # TypeError: an attribute of another type than the operator's
        return None


def _read_spec(node: ir.Node) -> AttentionSpec | None:
    if len(node.inputs) < 3 or not node.outputs:
        return None
    query, key, value = (_shape(node.inputs[position]) for position in range(3))
    if query is None or key is None or value is None or not len(query) == len(key) == len(value):
        return None
    if len(query) not in (3, 4):
        return None
    layout = Layout.BNSH if len(query) == 4 else Layout.BSH
    if layout is Layout.BNSH:
        heads, kv_heads = query[1], key[1]
        widths = (query[3], value[3])
    else:
        heads, kv_heads = _int(node, "q_num_heads"), _int(node, "kv_num_heads")
        widths = (_part(query[2], heads), _part(value[2], kv_heads))
    if heads is None or kv_heads is None or widths[0] is None or widths[1] is None:
        return None
    scale = node.attributes.get("scale")
    softcap = node.attributes.get("softcap")
    return AttentionSpec(
        q_num_heads=heads,
        kv_num_heads=kv_heads,
        head_dim=widths[0],
        v_head_dim=widths[1],
        is_causal=bool(_int(node, "is_causal")),
        left_window=_int(node, "left_window_size", -1),
        right_window=_int(node, "right_window_size", -1),
        mask=_mask_kind(node),
        softcap=softcap.as_float() if softcap else 0.0,
        scale=scale.as_float() if scale else ScaleRule.INVERSE_SQRT,
        has_past=_input(node, "past_key") is not None,
        layout=layout,
    )


def _inputs(spec: AttentionSpec, element: ir.DataType) -> list[tuple[str, ir.DataType, ir.Shape]]:
    past = ("batch_size", spec.kv_num_heads, "past_seq_len")
    found = [
        ("Q", element, _tensor_shape(spec, spec.q_num_heads, "q_seq_len", spec.head_dim)),
        ("K", element, _tensor_shape(spec, spec.kv_num_heads, "kv_seq_len", spec.head_dim)),
        ("V", element, _tensor_shape(spec, spec.kv_num_heads, "kv_seq_len", spec.v_head_dim)),
    ]
    total = "total_seq_len" if spec.has_past else "kv_seq_len"
    if spec.mask in (MaskKind.BOOL, MaskKind.FLOAT):
        kind = ir.DataType.BOOL if spec.mask is MaskKind.BOOL else element
        found.append(("attn_mask", kind, ir.Shape(["batch_size", 1, "q_seq_len", total])))
    if spec.has_past:
        found.append(("past_key", element, ir.Shape([*past, spec.head_dim])))
        found.append(("past_value", element, ir.Shape([*past, spec.v_head_dim])))
    if spec.mask is MaskKind.LENGTHS:
        found.append(("nonpad_kv_seqlen", ir.DataType.INT64, ir.Shape(["batch_size"])))
    return found


def _output_shapes(spec: AttentionSpec) -> list[ir.Shape]:
    present = ("batch_size", spec.kv_num_heads, "total_seq_len")
    return [
        _tensor_shape(spec, spec.q_num_heads, "q_seq_len", spec.v_head_dim),
        ir.Shape([*present, spec.head_dim]),
        ir.Shape([*present, spec.v_head_dim]),
    ]


def _tensor_shape(spec: AttentionSpec, num_heads: int, seq_len: str, width: int) -> ir.Shape:
    if spec.layout is Layout.BNSH:
        return ir.Shape(["batch_size", num_heads, seq_len, width])
    return ir.Shape(["batch_size", seq_len, num_heads * width])


def attributes_of(spec: AttentionSpec) -> dict[str, int | float]:
    """The attributes of an Attention node of this spec; what has the operator's default is left out."""
    attributes: dict[str, int | float] = {}
    if spec.is_causal:
        attributes["is_causal"] = 1
    if spec.scale != ScaleRule.INVERSE_SQRT:
        attributes["scale"] = spec.scale_value
    if spec.softcap:
        attributes["softcap"] = spec.softcap
    if spec.left_window >= 0:
        attributes["left_window_size"] = spec.left_window
    if spec.right_window >= 0:
        attributes["right_window_size"] = spec.right_window
    if spec.layout is not Layout.BNSH:
        attributes |= {"q_num_heads": spec.q_num_heads, "kv_num_heads": spec.kv_num_heads}
    return attributes


def _site(node: ir.Node, spec: AttentionSpec, fallback: str) -> AttentionSite:
    names = {field: _name(_input(node, onnx_name)) for field, onnx_name in ONNX_INPUT_NAMES.items()}
    return AttentionSite(
        name=node.name or fallback,
        spec=spec,
        query=names["query"] or "",
        key=names["key"] or "",
        value=names["value"] or "",
        output=node.outputs[0].name or "",
        attn_mask=names["attn_mask"],
        past_key=names["past_key"],
        past_value=names["past_value"],
        nonpad_kv_seqlen=names["nonpad_kv_seqlen"],
    )


def _name(value: ir.Value | None) -> str | None:
    return None if value is None else value.name


def _input(node: ir.Node, onnx_name: str) -> ir.Value | None:
    position = list(ONNX_INPUT_NAMES.values()).index(onnx_name)
    return node.inputs[position] if position < len(node.inputs) else None


def _mask_kind(node: ir.Node) -> MaskKind:
    if _input(node, "nonpad_kv_seqlen") is not None:
        return MaskKind.LENGTHS
    mask = _input(node, "attn_mask")
    if mask is None:
        return MaskKind.NONE
    return MaskKind.BOOL if mask.dtype is ir.DataType.BOOL else MaskKind.FLOAT


def _shape(value: ir.Value | None) -> list[int | None] | None:
    if value is None or value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


def _int(node: ir.Node, name: str, default: int = 0) -> int:
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute else default


def _part(width: int | None, count: int) -> int | None:
    return width // count if width is not None and count and width % count == 0 else None


def _ir_version(opset: int) -> int:
    """Lowest IR version that may hold the opset.

    Source: onnx.helper.OP_SET_ID_VERSION_MAP (opset 23: 11, 24: 12, 25: 13).
    """
    return {23: 11, 24: 12, 25: 13}[opset]
