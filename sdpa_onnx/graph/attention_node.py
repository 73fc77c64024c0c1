"""Convert between `AttentionSpec` and standard ONNX `Attention` nodes of opset 23 to 25, and build one-node models.

Runs and verifies nothing. Other dialects of attention are read in `graph.lift`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import onnx_ir as ir

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout, MaskKind, ScaleRule
from sdpa_onnx.errors import CaseError, ExportError
from sdpa_onnx.graph.element_types import ELEMENT_TYPES
from sdpa_onnx.graph.ir_version import lowest_ir_version
from sdpa_onnx.graph.site import AttentionSite

__all__ = [
    "add_scores_output",
    "attributes_of",
    "build_attention_model",
    "default_form",
    "find_sites",
    "mask_kind_of",
    "minimum_opset",
]

# The first opset that has the Attention operator.
_FIRST_OPSET = 23


def minimum_opset(spec: AttentionSpec) -> int:
    """Lowest opset whose Attention operator expresses the spec: 23, 24 or 25.

    Source: ONNX Attention; opset 24 adds nonpad_kv_seqlen, opset 25 adds windows.
    """
    if spec.has_window:
        return 25
    return 24 if spec.mask is MaskKind.LENGTHS else 23


def default_form(spec: AttentionSpec | None, opset: int) -> Literal["attention", "decomposed"]:
    """Default form of a spec at an opset: one Attention node if the exporter can write it, else the decomposed formula.

    Below the opset that adds a feature, the exporter replaces the feature by a
    computed mask. It cannot do that for a spec with a softcap.

    Args:
        spec: A bare attention, or None for a module.
        opset: 18 to 25.
    """
    beyond = spec is not None and bool(spec.softcap) and opset < minimum_opset(spec)
    return "attention" if opset >= _FIRST_OPSET and not beyond else "decomposed"


def build_attention_model(spec: AttentionSpec, *, opset: int, dtype: Dtype) -> ir.Model:
    """Write a model of one Attention node with dynamic sizes.

    Inputs are Q, K, V and those of attn_mask, past_key, past_value and
    nonpad_kv_seqlen that the spec has. Outputs are Y and, with a past,
    present_key and present_value. Head counts and widths are static; batch
    size and sequence lengths are dynamic.

    Args:
        spec: What the node computes.
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
    element = ELEMENT_TYPES[dtype]
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
    return ir.Model(graph, ir_version=lowest_ir_version(opset), producer_name="sdpa_onnx")


def add_scores_output(model: ir.Model, spec: AttentionSpec, mode: QkOutputMode, *, name: str) -> ir.Value:
    """Add the scores (qk_matmul_output) as an output of a model's one Attention node.

    Optional outputs before the scores that the node does not have yet get an
    empty name.

    Args:
        model: Built by `build_attention_model`; changed in place.
        spec: What the node computes.
        mode: The stage at which the scores are taken.
        name: Name of the new output.
    """
    node = model.graph.node(0)
    made = len(node.outputs)
    node.resize_outputs(4)
    for left_out in node.outputs[made:3]:
        left_out.name = ""
    scores = node.outputs[3]
    scores.name, scores.type = name, node.outputs[0].type
    total = "total_seq_len" if spec.has_past else "kv_seq_len"
    scores.shape = ir.Shape(["batch_size", spec.q_num_heads, "q_seq_len", total])
    node.attributes["qk_matmul_output_mode"] = ir.AttrInt64("qk_matmul_output_mode", int(mode))
    model.graph.outputs.append(scores)
    return scores


def find_sites(model: ir.Model) -> tuple[AttentionSite, ...]:
    """Describe every standard Attention node whose head counts and widths the graph states.

    They are read from attributes (3-D) or static shapes (4-D). A node whose
    shapes are unknown is left out; `inspect` lists it.
    """
    found: list[AttentionSite] = []
    for node in model.graph:
        if node.op_type == "Attention" and node.domain == "":
            spec = spec_of_node(node)
            if spec is not None:
                found.append(_site(node, spec, f"attention_{len(found)}"))
    return tuple(found)


def spec_of_node(node: ir.Node) -> AttentionSpec | None:
    """Read the spec of an Attention node; None if head counts or widths are unknown or the node is malformed."""
    read = spec_or_reason(node)
    return read if isinstance(read, AttentionSpec) else None


def spec_or_reason(node: ir.Node) -> AttentionSpec | str:
    """Read the spec of an Attention node, or return the reason why it cannot be read, without a full stop."""
    try:
        return _read_spec(node)
    except CaseError as error:
        return str(error.args[0]).rstrip(".")


def _read_spec(node: ir.Node) -> AttentionSpec | str:
    if len(node.inputs) < 3 or not node.outputs:
        return "it has no Q, K, V or output"
    shapes = {name: _shape(_input(node, name)) for name in ("Q", "K", "V")}
    known = {name: shape for name, shape in shapes.items() if shape is not None}
    if len(known) < 3:
        return f"the shape of its {next(name for name in shapes if name not in known)} is unknown"
    ranks = [len(shape) for shape in known.values()]
    if ranks not in ([3, 3, 3], [4, 4, 4]):
        return f"its Q, K and V have {ranks[0]}, {ranks[1]} and {ranks[2]} axes, expected 3 or 4 of each"
    figures = _figures(node, known)
    if isinstance(figures, str):
        return figures
    heads, kv_heads, *widths = figures
    layout = Layout.BNSH if ranks[0] == 4 else Layout.BSH
    scale = _number(node, "scale")
    return AttentionSpec(
        q_num_heads=heads,
        kv_num_heads=kv_heads,
        head_dim=widths[0],
        v_head_dim=widths[1],
        is_causal=bool(_int(node, "is_causal")),
        left_window=_int(node, "left_window_size", -1),
        right_window=_int(node, "right_window_size", -1),
        mask=_mask_kind(node),
        softcap=_number(node, "softcap") or 0.0,
        scale=ScaleRule.INVERSE_SQRT if scale is None else scale,
        has_past=_input(node, "past_key") is not None,
        layout=layout,
    )


def _figures(node: ir.Node, shapes: Mapping[str, Sequence[int | None]]) -> tuple[int, int, int, int] | str:
    """Number of query and key heads, widths of key and value heads; or the reason why they are unknown."""
    query, key, value = shapes["Q"], shapes["K"], shapes["V"]
    is_flat = len(query) == 3
    counts = (_int(node, "q_num_heads"), _int(node, "kv_num_heads")) if is_flat else (query[1], key[1])
    if is_flat and 0 in counts:
        return "its Q, K and V have 3 axes, but it has no q_num_heads and kv_num_heads"
    heads, kv_heads, width, v_width = *counts, query[-1], value[-1]
    if heads is None or kv_heads is None or width is None or v_width is None:
        needed = {"Q": (heads, width), "K": (kv_heads,), "V": (v_width,)}
        name = next(n for n, sizes in needed.items() if None in sizes)
        return f"the number of heads or the width of its {name} is not static"
    if not is_flat:
        return heads, kv_heads, width, v_width
    for name, size, count in (("Q", width, heads), ("V", v_width, kv_heads)):
        if size % count or size == 0:
            return f"the width of its {name} is {size}, not a multiple of its {count} heads"
    return heads, kv_heads, width // heads, v_width // kv_heads


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
    """The attributes of an Attention node of this spec; attributes at the operator's default are left out."""
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
    return mask_kind_of(_input(node, "attn_mask"))


def _shape(value: ir.Value | None) -> list[int | None] | None:
    if value is None or value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


def _int(node: ir.Node, name: str, default: int = 0) -> int:
    attribute = node.attributes.get(name)
    try:
        return attribute.as_int() if attribute else default
    except TypeError as error:
        raise CaseError(f"its attribute {name} is not an integer") from error


def _number(node: ir.Node, name: str) -> float | None:
    attribute = node.attributes.get(name)
    try:
        return attribute.as_float() if attribute else None
    except TypeError as error:
        raise CaseError(f"its attribute {name} is not a number") from error


def mask_kind_of(mask: ir.Value | None) -> MaskKind:
    """BOOL or FLOAT by the element type of the mask; NONE without a mask."""
    if mask is None:
        return MaskKind.NONE
    return MaskKind.BOOL if mask.dtype is ir.DataType.BOOL else MaskKind.FLOAT
