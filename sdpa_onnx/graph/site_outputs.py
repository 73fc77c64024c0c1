"""Names the optional outputs of each attention of a graph from their places, and the rule of its mask.

The name of a value decides nothing: an output of a node is what the operator's specification says of its position, and
in a decomposed graph a cache is the Concat of the past and the new entries. Reads no specs and judges nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from sdpa_onnx.core.attention.mask_rule import MaskRule, mask_rule_of
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.site import AttentionSite

__all__ = ["FORMAL_OUTPUTS", "locate_outputs", "used_outputs"]

# What the outputs of each operator that we read are, in the operator's order.
# Source: ONNX Attention, opset 23 to 25; onnxruntime docs/ContribOperators.md, version 1 of com.microsoft.
FORMAL_OUTPUTS: dict[tuple[str, str], tuple[OutputRole, ...]] = {
    ("", "Attention"): (OutputRole.OUTPUT, OutputRole.PRESENT_KEY, OutputRole.PRESENT_VALUE, OutputRole.QK),
    (CONTRIB_DOMAIN, "Attention"): (OutputRole.OUTPUT, OutputRole.PRESENT),
    (CONTRIB_DOMAIN, "MultiHeadAttention"): (
        OutputRole.OUTPUT,
        OutputRole.PRESENT_KEY,
        OutputRole.PRESENT_VALUE,
        OutputRole.QK,
    ),
    (CONTRIB_DOMAIN, "GroupQueryAttention"): (
        OutputRole.OUTPUT,
        OutputRole.PRESENT_KEY,
        OutputRole.PRESENT_VALUE,
        OutputRole.QK,
    ),
}
_STANDARD = ("", "Attention")
# Nodes between new keys and the Concat of a decomposed graph: they move elements and change none.
_MOVES = frozenset({"Identity", "Reshape", "Transpose"})
_STEPS = 8


def locate_outputs(model: ir.Model, sites: Sequence[AttentionSite]) -> tuple[AttentionSite, ...]:
    """The sites with the optional outputs that the graph has, each by its place.

    Args:
        model: The graph.
        sites: Their values belong to its main graph; a site whose output is not in it stays as it is.
    """
    if not sites:
        return ()
    values = {value.name: value for value in (*model.graph.inputs, *model.graph.initializers.values())}
    values |= {value.name: value for node in model.graph for value in node.outputs}
    return tuple(_located(site, values, model.opset_imports.get("", 0)) for site in sites)


def used_outputs(node: ir.Node) -> Iterator[tuple[OutputRole, ir.Value]]:
    """The outputs of an attention node that something reads or the graph returns, with what they are."""
    for role, value in zip(FORMAL_OUTPUTS.get((node.domain, node.op_type), ()), node.outputs, strict=False):
        if value.name and (value.uses() or value.is_graph_output()):
            yield role, value


def _located(site: AttentionSite, values: Mapping[str | None, ir.Value], opset: int) -> AttentionSite:
    output = values.get(site.output)
    node = None if output is None else output.producer()
    if output is None or node is None:
        return site
    operator = (node.domain, node.op_type)
    rule = mask_rule_of(opset) if operator == _STANDARD else MaskRule.BROADCAST
    if operator not in FORMAL_OUTPUTS or node.outputs[0] is not output:
        return replace(site.with_outputs(_joined(site, values)), mask_rule=rule)
    names = {role: value.name or "" for role, value in used_outputs(node)}
    if operator != _STANDARD:
        names.pop(OutputRole.QK, None)  # the specification of the operator does not name its stage
    mode = node.attributes.get("qk_matmul_output_mode") if operator == _STANDARD else None
    stage = mode.as_int() if mode is not None and mode.type is ir.AttributeType.INT else 0
    known = stage in set(QkOutputMode)
    if not known:
        names.pop(OutputRole.QK, None)
    located = site.with_outputs(names)
    return replace(located, scores_mode=QkOutputMode(stage if known else 0), mask_rule=rule)


def _joined(site: AttentionSite, values: Mapping[str | None, ir.Value]) -> dict[OutputRole, str]:
    """The Concat of past and new keys or values, where the graph returns it."""
    found: dict[OutputRole, str] = {}
    pairs = {
        OutputRole.PRESENT_KEY: (site.past_key, site.key),
        OutputRole.PRESENT_VALUE: (site.past_value, site.value),
    }
    for role, (past, new) in pairs.items():
        source = values.get(past) if past is not None else None
        if source is None:
            continue
        nodes = [use.node for use in source.uses() if use.node.op_type == "Concat" and use.idx == 0]
        outputs = [one.outputs[0] for one in nodes if len(one.inputs) == 2 and _moved_from(one.inputs[1], new)]
        returned = [value for value in outputs if value.is_graph_output()]
        if len(returned) == 1:
            found[role] = returned[0].name or ""
    return found


def _moved_from(value: ir.Value | None, name: str) -> bool:
    """Whether a value holds the elements of the value of that name."""
    for _ in range(_STEPS):
        if value is None or value.name == name:
            return value is not None
        producer = value.producer()
        if producer is None or producer.op_type not in _MOVES:
            return False
        value = producer.inputs[0]
    return False
