"""Recognise softmax(QK^T) V whose softmax is no Softmax node, each with the reason. Reads none of them."""

from collections.abc import Iterator

import onnx_ir as ir

from sdpa_onnx.graph.domains import CONTRIB_DOMAIN, is_standard
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.paths import from_products, into_products

__all__ = ["read"]

_DIALECT = "softmax between two products"
# Longest chain seen between a quantised product and its softmax: dequantise, scale, mask, quantise.
_STEPS = 8


def read(search: GraphFacts) -> Iterator[FoundAttention]:
    """Find each softmax in other operators between two products; none is read."""
    for node in search.nodes:
        name = search.name_of(node)
        if node.domain == CONTRIB_DOMAIN and node.op_type == "QLinearSoftmax" and _is_between_quantised(node):
            reason = f"the scores and the weights are quantized: QLinearSoftmax at node {name}"
            yield FoundAttention(dialect=_DIALECT, node=name, reason=reason)
            continue
        scores = _scores_of(node)
        if scores is not None and from_products(search, scores) and into_products(node.outputs[0]):
            reason = f"its softmax is computed by {_words(node)}, which is not read: node {name}"
            yield FoundAttention(dialect=_DIALECT, node=name, reason=reason)


def _scores_of(node: ir.Node) -> ir.Value | None:
    """What a node that ends a softmax of other operators takes the softmax of; None for any other node."""
    if not is_standard(node) or not node.inputs:
        return None
    first = _made_by(node.inputs[0])
    if node.op_type == "Exp" and first is not None and first.op_type == "LogSoftmax":
        return first.inputs[0]
    if node.op_type != "Div" or first is None or first.op_type != "Exp":
        return None
    total = _made_by(node.inputs[1])
    is_sum = total is not None and total.op_type == "ReduceSum" and total.inputs[0] is node.inputs[0]
    return first.inputs[0] if is_sum else None


def _words(node: ir.Node) -> str:
    return "Exp, ReduceSum and Div" if node.op_type == "Div" else "LogSoftmax and Exp"


def _made_by(value: ir.Value | None) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and is_standard(node) and node.inputs else None


def _is_between_quantised(softmax: ir.Node) -> bool:
    """Whether a product is upstream of a quantised softmax and another one downstream."""
    node: ir.Node | None = softmax
    for _ in range(_STEPS):
        node = None if node is None or not node.inputs or node.inputs[0] is None else node.inputs[0].producer()
        if node is not None and node.op_type in ("QLinearMatMul", "MatMul"):
            break
    is_product = node is not None and node.op_type in ("QLinearMatMul", "MatMul")
    readers = [user for user, _ in softmax.outputs[0].uses()]
    readers += [user for reader in readers for output in reader.outputs for user, _ in output.uses()]
    return is_product and any(reader.op_type in ("QLinearMatMul", "MatMul") for reader in readers)
