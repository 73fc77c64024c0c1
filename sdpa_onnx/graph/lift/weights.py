"""From the softmax to the product with the values: what may stand between, and who else reads the weights."""

from collections.abc import Sequence

import onnx_ir as ir

from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.paths import PathNode
from sdpa_onnx.graph.lift.refused import UnreadReason
from sdpa_onnx.graph.lift.row_guards import tells_empty_rows
from sdpa_onnx.graph.lift.score_chain import is_idle

__all__ = ["is_guard", "other_readers", "read_weights"]


def read_weights(search: GraphFacts, softmax: ir.Node, way: Sequence[PathNode], rank: int) -> int | UnreadReason:
    """The rank of the weights as they enter the product with the values.

    Args:
        search: The graph.
        softmax: The softmax.
        way: Nodes from it to the product, its side first.
        rank: Of its output.
    """
    for step in way:
        node = step.node
        if is_idle(search, step) or is_guard(search, softmax, step):
            continue
        if node.op_type == "Reshape":
            after = search.sizes_of(node.outputs[0])
            if after is None or {rank, len(after)} != {3, 4}:
                return UnreadReason(f"the weights are reshaped in a way that is not read: node {search.name_of(node)}")
            rank = len(after)
        elif _puts_zero(search, step):
            name = search.name_of(node)
            return UnreadReason(
                f"weights become 0 elsewhere than in rows without visible keys, as far as can be told: node {name}"
            )
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            return UnreadReason(f"the weights are quantized: {node.op_type} at node {search.name_of(node)}")
        else:
            name = search.name_of(node)
            return UnreadReason(
                f"{node.op_type} stands between the softmax and the product with the values: node {name}"
            )
    return rank


def other_readers(softmax: ir.Node, way: Sequence[PathNode], product: ir.Node) -> list[str]:
    """Names of what else reads the weights: nodes, or outputs of the graph."""
    inner = {step.node for step in way} | {product}
    values = [softmax.outputs[0], *(step.node.outputs[0] for step in way)]
    readers: list[str] = []
    for value in values:
        if value.is_graph_output():
            readers.append(f"output {value.name}")
        readers += [f"node {user.name}" for user in value.consumers() if user not in inner and user.op_type != "IsNaN"]
    return readers


def _puts_zero(search: GraphFacts, step: PathNode) -> bool:
    """Whether a Where puts 0 in place of some weights."""
    node = step.node
    if node.op_type != "Where" or step.position not in (1, 2) or node.inputs[0] is None:
        return False
    return search.scalar_of(node.inputs[3 - step.position]) == 0


def is_guard(search: GraphFacts, softmax: ir.Node, step: PathNode) -> bool:
    """Whether a Where puts 0 in place of NaN, or into exactly the rows without visible keys."""
    condition = step.node.inputs[0]
    if condition is None or not _puts_zero(search, step):
        return False
    tests_nan = step.position == 2 and _tests_nan(condition, (softmax.outputs[0], step.node.inputs[2]))
    return tests_nan or tells_empty_rows(search, softmax, condition, wanted=step.position == 2)


def _tests_nan(condition: ir.Value, weights: Sequence[ir.Value | None]) -> bool:
    node = condition.producer()
    return node is not None and node.op_type == "IsNaN" and node.inputs[0] in weights
