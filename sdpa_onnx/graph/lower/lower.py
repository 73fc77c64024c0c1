"""Put a form in the place of one attention of a graph: names, users, graph outputs and all other nodes survive.

Runs nothing, proves nothing, and never converts the opset.
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
from sdpa_onnx.graph.lower.remove import remove_unread
from sdpa_onnx.graph.nodes import Nodes
from sdpa_onnx.graph.subgraphs import inputs_within, nodes_within

__all__ = ["build_form", "current", "free_prefix", "lower", "needed_opset", "put", "refusal"]

_CONTRIB_VERSION = 1
# Where a value that was replaced notes what stands in its place: other attentions may still name it.
_REPLACED_BY = "sdpa_onnx.replaced_by"


def needed_opset(attention: GraphAttention, form: Form, options: LowerOptions | None = None) -> int:
    """Lowest opset of the graph that the form can be written in."""
    needed: int = _module(form).needed_opset(attention, options or LowerOptions())
    return needed


def refusal(attention: GraphAttention, form: Form, *, opset: int, options: LowerOptions | None = None) -> str | None:
    """Why the form cannot compute this attention, in one sentence, or None if it can.

    Args:
        attention: What is to be written.
        form: How.
        opset: Of the graph's default domain.
        options: Within the form.
    """
    needed = needed_opset(attention, form, options)
    if opset < needed:
        return f"The form '{form}' needs opset {needed}, and the graph has {opset}."
    reason: str | None = _module(form).refusal(attention, opset=opset, options=options or LowerOptions())
    return reason


def lower(
    model: ir.Model, attention: GraphAttention, form: Form, options: LowerOptions | None = None
) -> GraphAttention:
    """Write the form's nodes into the graph and let them take the attention's place.

    Outputs keep their names, types and shapes. What only served the old
    attention goes; a node that nothing read before stays.

    Args:
        model: Changed in place. Initializers are not read.
        attention: Its values belong to the model.
        form: What to write.
        options: Within the form.

    Returns:
        The attention with its new output values.

    Raises:
        ExportError: If the form refuses.
    """
    attention = current(attention)
    opset = model.opset_imports.get("", 0)
    reason = refusal(attention, form, opset=opset, options=options)
    if reason is not None:
        raise ExportError(f"Attention '{attention.name}' cannot be written as '{form}': {reason}")
    nodes = Nodes(free_prefix(model, f"{attention.name}/{form}"))
    return put(model, attention, nodes, build_form(nodes, attention, form, opset=opset, options=options))


def build_form(
    nodes: Nodes, attention: GraphAttention, form: Form, *, opset: int, options: LowerOptions | None = None
) -> FormOutputs:
    """Write a form's nodes, into no graph yet; the form does not refuse."""
    built: FormOutputs = _module(form).build(nodes, attention, opset=opset, options=options or LowerOptions())
    return built


def put(model: ir.Model, attention: GraphAttention, nodes: Nodes, built: FormOutputs) -> GraphAttention:
    """Let written nodes take an attention's place, see `lower`.

    Args:
        model: Changed in place.
        attention: Its values belong to the model.
        nodes: Not in a graph yet.
        built: What takes the place of each output.

    Raises:
        ExportError: If the attention is not in the model, or an output of it is not built.
    """
    old = _outputs(attention)
    graph, place = _place(attention, old)
    new = _new_outputs(nodes, attention, built)
    graph.insert_before(place, nodes.written)
    _take_over(attention, new)
    remove_unread(node for value in old.values() if (node := value.producer()) is not None)
    if not _is_ordered(graph):
        graph.sort()
    if any(inner.domain == CONTRIB_DOMAIN for node in nodes.written for inner in nodes_within(node)):
        model.opset_imports.setdefault(CONTRIB_DOMAIN, _CONTRIB_VERSION)
    changed: dict[str, Any] = dict(new)
    return replace(attention, **changed)


def current(attention: GraphAttention) -> GraphAttention:
    """The attention in terms of today's values: an input may be an output of one that was written anew."""
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
    """The producer of the output, or of a cache or of scores where they come later."""
    producers = {node for value in old.values() if (node := value.producer()) is not None}
    graph = next((node.graph for node in producers), None)
    if graph is None:
        raise ExportError(f"Attention '{attention.name}' is not in the model.")
    return graph, producers.pop() if len(producers) == 1 else [node for node in graph if node in producers][-1]


def free_prefix(model: ir.Model, prefix: str) -> str:
    """A prefix that no value or node of the model begins with."""
    taken = {name for node in model.graph.all_nodes() for name in _names(node)}
    taken |= {value.name or "" for value in model.graph.inputs} | set(model.graph.initializers)
    while any(name.startswith(f"{prefix}/") for name in taken):
        prefix += "_"
    return prefix


def _names(node: ir.Node) -> list[str]:
    return [node.name or "", *(value.name or "" for value in node.outputs)]


def _new_outputs(nodes: Nodes, attention: GraphAttention, built: FormOutputs) -> dict[str, ir.Value]:
    """What takes the place of each output; one that the form did not write itself, or gives twice, is copied."""
    own = set(nodes.written)
    found: dict[str, ir.Value] = {}
    for name in _outputs(attention):
        value: ir.Value | None = getattr(built, name)
        if value is None:
            raise ExportError(f"The form gives no {name} for attention '{attention.name}'.")
        if value.producer() not in own or any(value is other for other in found.values()):
            value = nodes("Identity", value)
        found[name] = value
    return found


def _take_over(attention: GraphAttention, new: dict[str, ir.Value]) -> None:
    """Name, type, shape, users and place among the graph's outputs pass from the old values to the new."""
    for name, old in _outputs(attention).items():
        value = new[name]
        value.type = old.type or value.type
        value.shape = old.shape if old.shape is not None else _shape(attention, name)
        old.replace_all_uses_with(value, replace_graph_outputs=True)
        value.name, old.name = old.name, f"{value.name}.before"
        old.meta[_REPLACED_BY] = value


def _shape(attention: GraphAttention, name: str) -> ir.Shape:
    """The shape of an output whose old value has none."""
    spec, query = attention.spec, attention.query.shape
    if name != "output" or query is None:
        widths = {"present_key": spec.head_dim, "present_value": spec.v_head_dim}
        heads = spec.q_num_heads if name == "scores" else spec.kv_num_heads
        return ir.Shape([None, heads, None, widths.get(name)])
    return ir.Shape([*query[: len(query) - 1], _width(spec)])


def _width(spec: AttentionSpec) -> int:
    return spec.v_head_dim * (1 if spec.layout is Layout.BNSH else spec.q_num_heads)


def _is_ordered(graph: ir.Graph) -> bool:
    """Whether every node comes after what it reads, its subgraphs included."""
    seen: set[ir.Node] = set()
    for node in graph:
        read = (value.producer() for value in inputs_within(node))
        if any(made is not None and made.graph is graph and made not in seen for made in read):
            return False
        seen.add(node)
    return True
