"""Replace one attention of a graph by a form; names, consumers, graph outputs and all other nodes are kept.

Runs nothing, verifies nothing, and does not convert the opset.
"""

from dataclasses import fields, replace
from types import ModuleType
from typing import Any, assert_never

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower import attention as attention_form
from sdpa_onnx.graph.lower import blocked, decomposed, ort_gqa, ort_mha
from sdpa_onnx.graph.lower.form_outputs import FormOutputs
from sdpa_onnx.graph.lower.graph_edits import GraphEdits, sort_graph
from sdpa_onnx.graph.lower.mask_nodes import with_full_mask
from sdpa_onnx.graph.lower.remove import remove_unread
from sdpa_onnx.graph.nodes import Nodes
from sdpa_onnx.graph.subgraphs import nodes_within

__all__ = ["build_form", "insert_form", "lower", "needed_opset", "refusal", "with_current_values"]

_CONTRIB_VERSION = 1
# Metadata key of a replaced value, for its replacement: other attentions may still refer to the old value.
_REPLACED_BY = "sdpa_onnx.replaced_by"


def needed_opset(attention: GraphAttention, form: Form, options: LowerOptions | None = None) -> int:
    """Lowest opset at which the form can be written."""
    needed: int = _module(form).needed_opset(attention, options or LowerOptions())
    return needed


def refusal(attention: GraphAttention, form: Form, *, opset: int, options: LowerOptions | None = None) -> str | None:
    """Why the form cannot compute this attention, in one sentence, or None if it can.

    Args:
        attention: The attention to be written.
        form: The form.
        opset: Opset of the graph's default domain.
        options: Options of the form.
    """
    if attention.quantisers and form is not Form.DECOMPOSED:
        return (
            f"The file has its {attention.quantisers.text} (QuantizeLinear between its products), which only the form "
            f"'{Form.DECOMPOSED}' keeps: use --form {Form.DECOMPOSED}."
        )
    needed = needed_opset(attention, form, options)
    if opset < needed:
        return f"The form '{form}' needs opset {needed}, but the graph has opset {opset}."
    reason: str | None = _module(form).refusal(attention, opset=opset, options=options or LowerOptions())
    return reason


def lower(
    model: ir.Model,
    attention: GraphAttention,
    form: Form,
    options: LowerOptions | None = None,
    *,
    edits: GraphEdits | None = None,
) -> GraphAttention:
    """Replace the attention by the form's nodes.

    Outputs keep their names, types and shapes. Nodes that only the old
    attention used are removed; a node that was unused before is kept.

    Args:
        model: Changed in place. Initializers are not read.
        attention: Its values belong to the model.
        form: The form to write.
        options: Options of the form.
        edits: Of the model, where several attentions are written: the caller sorts it afterwards; None = sorted here.

    Returns:
        The attention with its new output values.

    Raises:
        ExportError: If the form cannot express the attention.
    """
    attention = with_current_values(attention)
    opset = model.opset_imports.get("", 0)
    reason = refusal(attention, form, opset=opset, options=options)
    if reason is not None:
        raise ExportError(f"Attention '{attention.name}' cannot be written as '{form}': {reason}")
    nodes = Nodes((edits or GraphEdits(model)).free_prefix(f"{attention.name}/{form}"))
    built = build_form(nodes, attention, form, opset=opset, options=options)
    return insert_form(model, attention, nodes, built, edits)


def build_form(
    nodes: Nodes, attention: GraphAttention, form: Form, *, opset: int, options: LowerOptions | None = None
) -> FormOutputs:
    """Build a form's nodes without inserting them; the form must be able to express the attention."""
    attention = with_full_mask(nodes, attention)
    built: FormOutputs = _module(form).build(nodes, attention, opset=opset, options=options or LowerOptions())
    return built


def insert_form(
    model: ir.Model, attention: GraphAttention, nodes: Nodes, built: FormOutputs, edits: GraphEdits | None = None
) -> GraphAttention:
    """Insert built nodes in place of an attention, see `lower`.

    Args:
        model: Changed in place.
        attention: Its values belong to the model.
        nodes: Built nodes, not in a graph yet.
        built: The replacement of each output.
        edits: See `lower`.

    Raises:
        ExportError: If the attention is not in the model, or one of its outputs is not built.
    """
    old = _outputs(attention)
    graph, place = _place(attention, old)
    new = _new_outputs(nodes, attention, built)
    graph.insert_before(place, nodes.written)
    _replace_outputs(attention, new)
    remove_unread(node for value in old.values() if (node := value.producer()) is not None)
    if edits is None:
        sort_graph(graph)
    else:
        edits.inserted_in(graph)
    if any(inner.domain == CONTRIB_DOMAIN for node in nodes.written for inner in nodes_within(node)):
        model.opset_imports.setdefault(CONTRIB_DOMAIN, _CONTRIB_VERSION)
    changed: dict[str, Any] = dict(new)
    return replace(attention, is_bound_by_mask=False, **changed)  # every form applies the bounds of the spec itself


def with_current_values(attention: GraphAttention) -> GraphAttention:
    """The attention with its current values: an input may be the output of another attention that was replaced."""
    values = {field.name: getattr(attention, field.name) for field in fields(attention)}
    found: dict[str, Any] = {name: _current(value) for name, value in values.items() if isinstance(value, ir.Value)}
    return replace(attention, **found)


def _current(value: ir.Value) -> ir.Value:
    while _REPLACED_BY in value.meta:
        value = value.meta[_REPLACED_BY]
    return value


def _module(form: Form) -> ModuleType:
    match form:
        case Form.DECOMPOSED:
            return decomposed
        case Form.ATTENTION:
            return attention_form
        case Form.BLOCKED:
            return blocked
        case Form.ORT_MHA:
            return ort_mha
        case Form.ORT_GQA:
            return ort_gqa
        case _:
            assert_never(form)


def _outputs(attention: GraphAttention) -> dict[str, ir.Value]:
    """The values that a form replaces, by field."""
    names = ("output", "present_key", "present_value", "scores")
    return {name: value for name in names if (value := getattr(attention, name)) is not None}


def _place(attention: GraphAttention, old: dict[str, ir.Value]) -> tuple[ir.Graph, ir.Node]:
    """The last producer of the attention's outputs, in graph order."""
    producers = {node for value in old.values() if (node := value.producer()) is not None}
    graph = next((node.graph for node in producers), None)
    if graph is None:
        raise ExportError(f"Attention '{attention.name}' is not in the model.")
    return graph, producers.pop() if len(producers) == 1 else [node for node in graph if node in producers][-1]


def _new_outputs(nodes: Nodes, attention: GraphAttention, built: FormOutputs) -> dict[str, ir.Value]:
    """The replacement of each output; one that the form does not compute itself, or uses twice, gets an Identity."""
    own = set(nodes.written)
    found: dict[str, ir.Value] = {}
    for name in _outputs(attention):
        value: ir.Value | None = getattr(built, name)
        if value is None:
            raise ExportError(f"The form has no output {name} for attention '{attention.name}'.")
        if value.producer() not in own or any(value is other for other in found.values()):
            value = nodes("Identity", value)
        found[name] = value
    return found


def _replace_outputs(attention: GraphAttention, new: dict[str, ir.Value]) -> None:
    """Move name, type, shape, consumers and role as graph output from the old values to the new ones."""
    for name, old in _outputs(attention).items():
        value = new[name]
        value.type = old.type or value.type
        value.shape = old.shape if old.shape is not None else _shape(attention, name)
        old.replace_all_uses_with(value, replace_graph_outputs=True)
        value.name, old.name = old.name, f"{value.name}.before"
        old.meta[_REPLACED_BY] = value


def _shape(attention: GraphAttention, name: str) -> ir.Shape:
    """The shape of an output whose old value has no shape."""
    spec, query = attention.spec, attention.query.shape
    if name != "output" or query is None:
        widths = {"present_key": spec.head_dim, "present_value": spec.v_head_dim}
        heads = spec.q_num_heads if name == "scores" else spec.kv_num_heads
        return ir.Shape([None, heads, None, widths.get(name)])
    return ir.Shape([*query[: len(query) - 1], _width(spec)])


def _width(spec: AttentionSpec) -> int:
    return spec.v_head_dim * (1 if spec.layout is Layout.BNSH else spec.q_num_heads)
