"""Two forms of one attention behind an `If` on the number of queries, which is read when the graph runs.

What enters and leaves the attention stands outside the branches, so that it can be tapped as ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.form_outputs import FormOutputs
from sdpa_onnx.graph.lower.lower import build_form, free_prefix, put, refusal
from sdpa_onnx.graph.lower.operands import AttentionLengths
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["Branch", "branch_lengths", "lower_by_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One of the two forms, and what is chosen within it."""

    form: Form
    options: LowerOptions


def lower_by_length(
    model: ir.Model, attention: GraphAttention, *, short: Branch, long: Branch, at: int
) -> GraphAttention:
    """Write both forms into the graph in the attention's place.

    Args:
        model: Changed in place.
        attention: Its values belong to the model.
        short: What runs for up to `at` queries.
        long: What runs for more.
        at: Queries.

    Returns:
        The attention with its new output values.

    Raises:
        ExportError: If one of the forms refuses.

    Source: ONNX If, opset 11 and later; branches read outer values by name.
    """
    opset = model.opset_imports.get("", 0)
    for branch in (short, long):
        reason = refusal(attention, branch.form, opset=opset, options=branch.options)
        if reason is not None:
            raise ExportError(f"Attention '{attention.name}' cannot be written as '{branch.form}': {reason}")
    nodes = Nodes(free_prefix(model, f"{attention.name}/by-length"))
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
    return put(
        model, attention, nodes, replace(FormOutputs(output=outputs[0]), **dict(zip(wanted, outputs, strict=True)))
    )


def branch_lengths(model: ir.Model) -> tuple[int, ...]:
    """Queries up to which the short form of each such `If` runs, smallest first."""
    conditions = (node.inputs[0] for node in model.graph if node.op_type == "If")
    found = {length for condition in conditions if (length := _most_queries(condition)) is not None}
    return tuple(sorted(found))


def _most_queries(condition: ir.Value | None) -> int | None:
    """The number in a condition that `_is_short` wrote; None of any other."""
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
    """The outputs that something reads, by field; the attention's own first."""
    optional = ("present_key", "present_value", "scores")
    return ("output", *(name for name in optional if getattr(attention, name) is not None))


def _is_short(nodes: Nodes, attention: GraphAttention, at: int) -> ir.Value:
    """Whether the query has at most so many rows: a boolean scalar, which `_most_queries` reads."""
    more = nodes(
        "Greater",
        AttentionLengths(nodes, attention).queries,
        nodes.constant(at, ir.DataType.INT64),
        dtype=ir.DataType.BOOL,
    )
    return nodes("Not", more, dtype=ir.DataType.BOOL)


def _branch_graph(prefix: str, attention: GraphAttention, branch: Branch, opset: int) -> ir.Graph:
    """One form as a graph without inputs; what it did not write itself is copied to be its output."""
    nodes = Nodes(prefix)
    built = build_form(nodes, attention, branch.form, opset=opset, options=branch.options)
    outputs: list[ir.Value] = []
    for name in _wanted(attention):
        value: ir.Value | None = getattr(built, name)
        if value is None:
            raise ExportError(f"The form '{branch.form}' gives no {name} for attention '{attention.name}'.")
        if value.producer() not in nodes.written or any(value is other for other in outputs):
            value = nodes("Identity", value)
        outputs.append(value)
    return ir.Graph([], outputs, nodes=nodes.written, name=prefix.replace("/", "_"))
