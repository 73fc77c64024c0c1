"""Recognise talking heads: a linear mix of the heads of the scores or of the weights. No form computes it.

Source: Shazeer et al. 2020, "Talking-Heads Attention".
"""

from collections.abc import Iterator

import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.operands import order_of
from sdpa_onnx.graph.lift.paths import from_products, into_products

__all__ = ["mixed_heads"]

# Operators between the softmax and a mix: masks, scale, casts, axes in another order.
_PASSED = frozenset(["Add", "Cast", "Div", "Dropout", "Identity", "Mul", "Sub", "Transpose", "Where"])
_STEPS = 8
# Axis of the heads in scores and weights of rank 4.
_HEADS = 1


def mixed_heads(search: GraphFacts, softmax: ir.Node) -> str:
    """Why a softmax between two products is no attention that can be read: its heads are mixed; "" if they are not."""
    scores = softmax.inputs[0]
    before = None
    if scores is None or not from_products(search, scores):  # a product that is not mixed is that of query and key
        before = next((one for one in _upstream(softmax) if _is_mix(search, one) and _has_product(search, one)), None)
        if before is None:
            return ""
    after = next((one for one in _downstream(softmax) if _is_mix(search, one) and into_products(one.outputs[0])), None)
    if after is None and not into_products(softmax.outputs[0]):
        return ""
    places = [word for word, one in (("before", before), ("after", after)) if one is not None]
    names = [f"node {search.name_of(one)}" for one in (before, after) if one is not None]
    where = f"{' and '.join(places)} the softmax (talking heads)"
    return f"its heads are mixed {where}, and no form does that: {' and '.join(names)}" if places else ""


def _upstream(softmax: ir.Node) -> Iterator[ir.Node]:
    values = [softmax.inputs[0]]
    for _ in range(_STEPS):
        makers = [node for value in values if value is not None and (node := value.producer()) is not None]
        yield from makers
        values = [value for node in makers if node.op_type in _PASSED for value in node.inputs]


def _downstream(softmax: ir.Node) -> Iterator[ir.Node]:
    values = list(softmax.outputs)
    for _ in range(_STEPS):
        readers = [node for value in values for node, position in value.uses() if node.inputs[position] is value]
        yield from readers
        values = [node.outputs[0] for node in readers if node.op_type in _PASSED]


def _has_product(search: GraphFacts, mix: ir.Node) -> bool:
    return mix.inputs[0] is not None and bool(from_products(search, mix.inputs[0]))


def _is_mix(search: GraphFacts, node: ir.Node) -> bool:
    """Whether a node adds up heads: a convolution of 1 x 1, or a product of constants with the heads as last axis."""
    if not is_standard(node) or len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return False
    weights = search.dims_of(node.inputs[1])
    if weights is None or not search.is_constant(node.inputs[1]):
        return False
    sizes = search.sizes_of(node.inputs[0])
    match node.op_type:
        case "Conv":
            group = node.attributes.get("group")
            return len(weights) == 4 and weights[2:] == (1, 1) and (group is None or group.as_int() == 1)
        case "MatMul":
            turned = node.inputs[0].producer()
            order = order_of(turned, 4) if turned is not None and turned.op_type == "Transpose" else []
            return len(weights) == 2 and order[-1:] == [_HEADS]
        case "Einsum":
            return sizes is not None and len(sizes) == 4 and len(weights) == 2 and _sums_heads(node)
        case _:
            return False


def _sums_heads(node: ir.Node) -> bool:
    """Whether the equation replaces the second letter of its first operand by a letter of the second."""
    attribute = node.attributes.get("equation")
    equation = "" if attribute is None else attribute.as_string().replace(" ", "")
    left, arrow, result = equation.partition("->")
    scores, _, mix = left.partition(",")
    if not arrow or len(scores) != 4 or len(mix) != 2 or len(result) != 4:
        return False
    return scores[_HEADS] in mix and set(result) == (set(scores) | set(mix)) - {scores[_HEADS]}
