"""Write two forms of one attention as branches of an `If` on the number of queries, evaluated at run time.

Inputs and outputs of the attention stay outside the branches, so a verification can still read them. Does not choose
the forms or the length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.form_outputs import FormOutputs
from sdpa_onnx.graph.lower.graph_edits import GraphEdits
from sdpa_onnx.graph.lower.lower import build_form, insert_form, refusal
from sdpa_onnx.graph.lower.operands import AttentionLengths
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["Branch", "branch_lengths", "lower_by_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One of the two forms, with its options."""

    form: Form
    options: LowerOptions


def lower_by_length(
    model: ir.Model,
    attention: GraphAttention,
    *,
    short: Branch,
    long: Branch,
    at: int,
    edits: GraphEdits | None = None,
) -> GraphAttention:
    """Replace the attention by both forms.

    Args:
        model: Changed in place.
        attention: Its values belong to the model.
        short: The form for up to `at` queries.
        long: The form for more queries.
        at: Number of queries.
        edits: Of the model, where several attentions are written: the caller sorts it afterwards; None = sorted here.

    Returns:
        The attention with its new output values.

    Raises:
        ExportError: If one of the forms cannot express the attention.

    Source: ONNX If, opset 11 and later; branches read outer values by name.
    """
    opset = model.opset_imports.get("", 0)
    for branch in (short, long):
        reason = refusal(attention, branch.form, opset=opset, options=branch.options)
        if reason is not None:
            raise ExportError(f"Attention '{attention.name}' cannot be written as '{branch.form}': {reason}")
    nodes = Nodes((edits or GraphEdits(model)).free_prefix(f"{attention.name}/by-length"))
    graphs = {
        name: _branch_graph(f"{nodes.prefix}/{name}", attention, branch, opset)
        for name, branch in (("short", short), ("long", long))
    }
    wanted = _wanted(attention)
    outputs = nodes.many(
        "If",
        _is_short(nodes, attention, at),
        outputs=len(wanted),
        then_branch=graphs["short"],
        else_branch=graphs["long"],
    )
    for name, value in zip(wanted, outputs, strict=True):
        value.type = getattr(attention, name).type or ir.TensorType(attention.query.dtype or ir.DataType.FLOAT)
    return insert_form(
        model,
        attention,
        nodes,
        replace(FormOutputs(output=outputs[0]), **dict(zip(wanted, outputs, strict=True))),
        edits,
    )


def branch_lengths(model: ir.Model) -> tuple[int, ...]:
    """The number of queries up to which the short form runs, for each such `If`; smallest first."""
    conditions = (node.inputs[0] for node in model.graph if node.op_type == "If")
    found = {length for condition in conditions if (length := _most_queries(condition)) is not None}
    return tuple(sorted(found))


def _most_queries(condition: ir.Value | None) -> int | None:
    """The number in a condition written by `_is_short`; None for any other condition."""
    negation = None if condition is None else condition.producer()
    if negation is None or negation.op_type != "Not" or negation.inputs[0] is None:
        return None
    comparison = negation.inputs[0].producer()
    if comparison is None or comparison.op_type != "Greater" or comparison.inputs[1] is None:
        return None
    tensor = ir.convenience.get_const_tensor(comparison.inputs[1])
    if tensor is None or tensor.dtype != ir.DataType.INT64 or tensor.size != 1:
        return None
    return int(tensor.numpy().item())


def _wanted(attention: GraphAttention) -> Sequence[str]:
    """Field names of the outputs that are used; `output` comes first."""
    optional = ("present_key", "present_value", "scores")
    return ("output", *(name for name in optional if getattr(attention, name) is not None))


def _is_short(nodes: Nodes, attention: GraphAttention, at: int) -> ir.Value:
    """Whether there are at most `at` queries: a boolean scalar, which `_most_queries` reads back."""
    more = nodes(
        "Greater",
        AttentionLengths(nodes, attention).queries,
        nodes.constant(at, ir.DataType.INT64),
        dtype=ir.DataType.BOOL,
    )
    return nodes("Not", more, dtype=ir.DataType.BOOL)


def _branch_graph(prefix: str, attention: GraphAttention, branch: Branch, opset: int) -> ir.Graph:
    """One form as a graph without inputs; an output that it does not compute itself goes through an Identity."""
    nodes = Nodes(prefix)
    built = build_form(nodes, attention, branch.form, opset=opset, options=branch.options)
    outputs: list[ir.Value] = []
    for name in _wanted(attention):
        value: ir.Value | None = getattr(built, name)
        if value is None:
            raise ExportError(f"The form '{branch.form}' has no output {name} for attention '{attention.name}'.")
        if value.producer() not in nodes.written or any(value is other for other in outputs):
            value = nodes("Identity", value)
        outputs.append(value)
    return ir.Graph([], outputs, nodes=nodes.written, name=prefix.replace("/", "_"))
