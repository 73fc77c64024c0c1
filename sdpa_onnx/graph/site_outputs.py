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

__all__ = ["FORMAL_OUTPUTS", "locate_outputs", "outputs_of", "scores_stages", "unjudged_outputs", "used_outputs"]

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
# By GroupQueryAttention's qk_output.
_QK_OUTPUT = {
    1: (QkOutputMode.SCORES, QkOutputMode.AFTER_SOFTCAP, QkOutputMode.AFTER_MASK),
    2: (QkOutputMode.WEIGHTS,),
}
_NOT_DEFINED = "nothing in this part of the model says which of its entries are defined"
_NOT_NAMED = "its attribute names no stage of the scores"


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


def outputs_of(node: ir.Node) -> dict[OutputRole, str]:
    """Names of the outputs of an attention node that have one, by what they are; empty for other nodes."""
    roles = FORMAL_OUTPUTS.get((node.domain, node.op_type), ())
    return {role: value.name for role, value in zip(roles, node.outputs, strict=False) if value.name}


def used_outputs(node: ir.Node) -> Iterator[tuple[OutputRole, ir.Value]]:
    """The outputs of an attention node that something reads or the graph returns, with what they are."""
    for role, value in zip(FORMAL_OUTPUTS.get((node.domain, node.op_type), ()), node.outputs, strict=False):
        if value.name and (value.uses() or value.is_graph_output()):
            yield role, value


def unjudged_outputs(model: ir.Model, sites: Sequence[AttentionSite]) -> dict[str, str]:
    """The used outputs of attention nodes that no site names, so that nothing judges them: a sentence by name."""
    named = {name for site in sites for name in site.outputs.values()}
    ends = {site.output: site for site in sites}
    found: dict[str, str] = {}
    for node in model.graph:
        site = ends.get(node.outputs[0].name or "") if node.outputs else None
        if site is None or (node.domain, node.op_type) not in FORMAL_OUTPUTS:
            continue
        for role, value in used_outputs(node):
            if value.name and value.name not in named:
                why = _NOT_NAMED if role is OutputRole.QK else _NOT_DEFINED
                found[value.name] = f"Output '{value.name}' ({role}) of attention '{site.name}' is not judged: {why}."
    return found


def _located(site: AttentionSite, values: Mapping[str | None, ir.Value], opset: int) -> AttentionSite:
    output = values.get(site.output)
    node = None if output is None else output.producer()
    if output is None or node is None:
        return site
    operator = (node.domain, node.op_type)
    rule = mask_rule_of(opset) if operator == _STANDARD else MaskRule.BROADCAST
    if operator not in FORMAL_OUTPUTS or node.outputs[0] is not output:
        noted = {role: name for role, name in site.outputs.items() if name in values}  # as convert wrote them
        return replace(site.with_outputs({**noted, **_joined(site, values)}), mask_rule=rule)
    names = {role: value.name or "" for role, value in used_outputs(node)}
    stages = scores_stages(node)
    if not stages:
        names.pop(OutputRole.QK, None)
    if any(name is not None and name not in values for name in (site.cache_lengths, site.cache_magnitudes)):
        # In a part of a model nothing says which entries of the cache the operator defines.
        names = {role: name for role, name in names.items() if role in (OutputRole.OUTPUT, OutputRole.QK)}
        site = replace(site, cache_lengths=None, cache_magnitudes=None)
    first, *others = stages or (QkOutputMode.SCORES,)
    return replace(site.with_outputs(names), scores_mode=first, other_scores_modes=tuple(others), mask_rule=rule)


def scores_stages(node: ir.Node) -> tuple[QkOutputMode, ...]:
    """The stages that the scores of a node may be of by its operator's specification; () if its attribute is unknown.

    Source: qk_matmul_output_mode of ONNX Attention; GroupQueryAttention, qk_output: "before (1) or after (2) softmax
        normalization", which leaves open whether softcap and mask are included; MultiHeadAttention, qk: "normalized
        Q * K", which may be scaled or summing to 1.
    """
    match (node.domain, node.op_type):
        case ("", "Attention"):
            mode = _integer(node, "qk_matmul_output_mode")
            return (QkOutputMode(mode),) if mode in set(QkOutputMode) else ()
        case (_, "GroupQueryAttention"):
            return _QK_OUTPUT.get(_integer(node, "qk_output"), ())
        case _:
            return tuple(QkOutputMode)


def _integer(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute is not None and attribute.type is ir.AttributeType.INT else 0


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
        # A branch of an If has outputs too; nothing outside sees them.
        returned = [value for value in outputs if value.is_graph_output() and values.get(value.name) is value]
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
