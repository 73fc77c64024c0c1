"""Read the nodes from the softmax to the product with the values, and find other consumers of the weights.

Does not read that product; `products` does.
"""

import math
from collections.abc import Collection, Sequence

import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.element_types import DTYPES
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.paths import PathNode
from sdpa_onnx.graph.lift.refused import UnreadReason
from sdpa_onnx.graph.lift.softmax.quantised_chain import QUANTISING
from sdpa_onnx.graph.lift.softmax.row_guards import detects_empty_rows
from sdpa_onnx.graph.lift.softmax.score_chain import ScoreChain, passes_through
from sdpa_onnx.graph.lift.softmax.sinks import drops_sink

__all__ = ["is_guard", "other_readers", "read_weights"]

# Operators between the weights and the condition of a guard.
_CONDITIONS = frozenset(
    [
        "And",
        "Cast",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "Not",
        "Or",
    ]
)


def read_weights(
    search: GraphFacts, softmax: ir.Node, path: Sequence[PathNode], chain: ScoreChain
) -> int | UnreadReason:
    """The rank of the weights at the product with the values.

    Args:
        search: The graph.
        softmax: The softmax.
        path: Nodes from the softmax to the product, in order.
        chain: The nodes before the softmax; the path has to drop its sink. Pairs that round the weights are added.
    """
    rank, added, kept = chain.rank, chain.added, chain.sink
    weights = {softmax.outputs[0], *(step.node.outputs[0] for step in path)}
    for step in path:
        node = step.node
        if kept is not None and drops_sink(search, step, kept):
            kept = None
            continue
        if passes_through(search, step) or is_guard(search, softmax, step, added):
            continue
        if _replaces_infinity(search, step, weights):
            continue
        if node.op_type == "Reshape":
            after = search.sizes_of(node.outputs[0])
            if after is None or {rank, len(after)} != {3, 4}:
                return UnreadReason(f"the weights have a Reshape that is not read: node {search.name_of(node)}")
            rank = len(after)
        elif _puts_zero(search, step):
            name = search.name_of(node)
            rows = f"rows that the mask '{chain.last_mask}' hides fully" if chain.masks else "fully masked rows"
            return UnreadReason(
                f"weights become 0, and it is not proved that only {rows} do: node {name} (hide keys by the mask alone)"
            )
        elif node.op_type in QUANTISING:
            refused = chain.pairs.read(search, node, "weights")
            if refused is not None:
                return refused
        else:
            name = search.name_of(node)
            return UnreadReason(
                f"there is a {node.op_type} between the softmax and the product with the values: node {name}"
            )
    if kept is not None:
        return UnreadReason(
            f"the sink of the softmax is not dropped from the weights: node {search.name_of(kept.node)}"
        )
    return rank


def other_readers(search: GraphFacts, softmax: ir.Node, path: Sequence[PathNode], product: ir.Node) -> list[str]:
    """Names of other consumers of the numbers of the weights: nodes or graph outputs."""
    inner = {step.node for step in path} | {product}
    guards = [step.node for step in path if step.node.op_type == "Where"]
    values = [softmax.outputs[0], *(step.node.outputs[0] for step in path)]
    readers: list[str] = []
    for value in values:
        if value.is_graph_output():
            readers.append(f"output {value.name}")
        readers += [
            f"node {search.name_of(user)}"
            for user, position in value.uses()
            if user not in inner
            and user.op_type != "IsNaN"
            and (user.op_type, position) != ("CastLike", 1)
            and not _is_condition(user, guards)
        ]
    return readers


def _is_condition(user: ir.Node, guards: Sequence[ir.Node]) -> bool:
    """Whether a node serves only the conditions of guards."""
    waiting, seen = [user], {user}
    while waiting:
        node = waiting.pop()
        if node.op_type not in _CONDITIONS or any(value.is_graph_output() for value in node.outputs):
            return False
        for reader, position in (use for value in node.outputs for use in value.uses()):
            if reader in guards and position == 0:
                continue
            if reader not in seen:
                seen.add(reader)
                waiting.append(reader)
    return True


def _replaces_infinity(search: GraphFacts, step: PathNode, weights: Collection[ir.Value]) -> bool:
    """Whether a node is a Where that replaces only infinite weights, as `nan_to_num` does: there are none."""
    node, condition = step.node, step.node.inputs[0]
    return node.op_type == "Where" and step.position == 2 and _is_never(search, condition, weights)


def _is_never(search: GraphFacts, condition: ir.Value | None, weights: Collection[ir.Value]) -> bool:
    """Whether a condition asks for infinite weights, maybe among others."""
    node = None if condition is None else condition.producer()
    if node is None or not is_standard(node):
        return False
    match node.op_type:
        case "Cast" | "Identity" | "Or":
            return all(_is_never(search, value, weights) for value in node.inputs)
        case "And":
            return any(_is_never(search, value, weights) for value in node.inputs)
        case "IsInf":
            return _is_of(node.inputs[0], weights)
        case "Equal":
            one, other = node.inputs
            return any(
                _is_of(value, weights) and math.isinf(search.scalar_of(number) or 0.0)
                for value, number in ((one, other), (other, one))
            )
        case _:
            return False


def _is_of(value: ir.Value | None, weights: Collection[ir.Value]) -> bool:
    """Whether a value is the weights, maybe in another float type."""
    node = None if value is None else value.producer()
    if value not in weights and node is not None and node.op_type in ("Cast", "Identity"):
        return value is not None and value.dtype in DTYPES and _is_of(node.inputs[0], weights)
    return value in weights


def _puts_zero(search: GraphFacts, step: PathNode) -> bool:
    """Whether a node is a Where that replaces some weights by 0."""
    node = step.node
    if node.op_type != "Where" or step.position not in (1, 2) or node.inputs[0] is None:
        return False
    return search.scalar_of(node.inputs[3 - step.position]) == 0


def is_guard(search: GraphFacts, softmax: ir.Node, step: PathNode, added: ir.Value | None) -> bool:
    """Whether a node is a Where that replaces NaN by 0, or exactly the fully masked rows by 0.

    Args:
        search: The graph.
        softmax: The softmax.
        step: The node.
        added: The only mask, if it is added to the scores.
    """
    condition = step.node.inputs[0]
    if condition is None or not _puts_zero(search, step):
        return False
    tests_nan = step.position == 2 and _tests_nan(condition, (softmax.outputs[0], step.node.inputs[2]))
    return tests_nan or detects_empty_rows(search, softmax, condition, wanted=step.position == 2, added=added)


def _tests_nan(condition: ir.Value, weights: Sequence[ir.Value | None]) -> bool:
    node = condition.producer()
    return node is not None and node.op_type == "IsNaN" and node.inputs[0] in weights
