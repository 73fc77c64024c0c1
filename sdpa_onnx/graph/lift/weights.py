"""Read the nodes from the softmax to the product with the values, and find other consumers of the weights.

Does not read that product; `products` does.
"""

from collections.abc import Sequence

import onnx_ir as ir

from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.paths import PathNode
from sdpa_onnx.graph.lift.quantised_chain import QUANTISING
from sdpa_onnx.graph.lift.refused import UnreadReason
from sdpa_onnx.graph.lift.row_guards import detects_empty_rows
from sdpa_onnx.graph.lift.score_chain import ScoreChain, passes_through
from sdpa_onnx.graph.lift.sinks import drops_sink

__all__ = ["is_guard", "other_readers", "read_weights"]


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
    for step in path:
        node = step.node
        if kept is not None and drops_sink(search, step, kept):
            kept = None
            continue
        if passes_through(search, step) or is_guard(search, softmax, step, added):
            continue
        if node.op_type == "Reshape":
            after = search.sizes_of(node.outputs[0])
            if after is None or {rank, len(after)} != {3, 4}:
                return UnreadReason(f"the weights have a Reshape that is not read: node {search.name_of(node)}")
            rank = len(after)
        elif _puts_zero(search, step):
            name = search.name_of(node)
            return UnreadReason(f"weights become 0, and it is not proved that only fully masked rows do: node {name}")
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
    values = [softmax.outputs[0], *(step.node.outputs[0] for step in path)]
    readers: list[str] = []
    for value in values:
        if value.is_graph_output():
            readers.append(f"output {value.name}")
        readers += [
            f"node {search.name_of(user)}"
            for user, position in value.uses()
            if user not in inner and user.op_type != "IsNaN" and (user.op_type, position) != ("CastLike", 1)
        ]
    return readers


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
