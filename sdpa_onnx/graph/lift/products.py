"""Read the two matrix products of attention (MatMul, FusedMatMul, Gemm or Einsum) as query, key and value.

Brings their axes into the order of the operator. Does not read the nodes between the products.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.lift.factors import Factor, unscaled
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.operands import transposed, untransposed
from sdpa_onnx.graph.lift.paths import PathNode
from sdpa_onnx.graph.lift.refused import UnreadReason
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["ScoresProduct", "ValuesProduct", "scores_product", "values_product"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresProduct:
    """QK^T times a constant factor.

    Args:
        node: The product.
        query: (..., q length, head_dim).
        key: (..., kv length, head_dim).
        factor: Product of the constants multiplied into query, key or the product.
        rank: 2, 3 or 4.
    """

    node: ir.Node
    query: ir.Value
    key: ir.Value
    factor: Factor
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesProduct:
    """The weights times V.

    Args:
        node: The product.
        weights: (..., q length, kv length).
        value: (..., kv length, v_head_dim).
        order: Axis permutation of the node's output; None if it is (..., q length, v_head_dim).
    """

    node: ir.Node
    weights: ir.Value
    value: ir.Value
    order: tuple[int, ...] | None = None


def scores_product(search: GraphFacts, nodes: Nodes, node: ir.Node) -> ScoresProduct | UnreadReason:
    """Read the product of query and key that computes the scores."""
    name = search.name_of(node)
    if len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return UnreadReason(f"a product has no two operands: node {name}")
    left, one = unscaled(search, node.inputs[0])
    right, other = unscaled(search, node.inputs[1])
    factor = one * other
    if node.op_type == "Einsum":
        return _einsum_scores(search, nodes, node, (left, right), factor)
    ranks = [None if (sizes := search.sizes_of(value)) is None else len(sizes) for value in (left, right)]
    if None in ranks:
        return UnreadReason(f"the rank of query or key is unknown: node {name}")
    if ranks[0] != ranks[1]:
        return UnreadReason(f"its operands have ranks {ranks[0]} and {ranks[1]}, so it is a projection: node {name}")
    if node.op_type == "MatMul":
        key = untransposed(search, nodes, right)
    elif _is_scaled(node):
        key = right if _number(node, "transB", 0) else untransposed(search, nodes, right)
        factor *= Factor(number=_number(node, "alpha", 1.0), doubt=2.0**-24)
    else:
        return UnreadReason(f"{node.op_type} is not read as a product of query and key: node {name}")
    key, folded = unscaled(search, key)
    return ScoresProduct(node=node, query=left, key=key, factor=factor * folded, rank=ranks[0] or 0)


def values_product(search: GraphFacts, nodes: Nodes, step: PathNode) -> ValuesProduct | UnreadReason:
    """Read the product of the weights and the values."""
    node = step.node
    name = search.name_of(node)
    if len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return UnreadReason(f"a product has no two operands: node {name}")
    if node.op_type == "Einsum":
        return _einsum_values(search, nodes, step)
    plain = node.op_type == "MatMul" or (node.op_type in ("FusedMatMul", "Gemm") and _only(node))
    if step.position != 0 or not plain or len(node.inputs) != 2:
        return UnreadReason(f"{node.op_type} is not read as a product of weights and values: node {name}")
    return ValuesProduct(node=node, weights=node.inputs[0], value=node.inputs[1])


def _einsum_scores(
    search: GraphFacts, nodes: Nodes, node: ir.Node, operands: tuple[ir.Value, ir.Value], factor: Factor
) -> ScoresProduct | UnreadReason:
    letters = _letters(search, node)
    if letters is None:
        return _unread_equation(search, node)
    left, right, out = letters
    query, key = operands
    if out[-1] in left:
        left, right, query, key = right, left, key, query
    batch, summed = out[:-2], (set(left) & set(right)) - set(out)
    if len(summed) != 1:
        return _unread_equation(search, node)
    (width,) = summed
    wanted = (batch + out[-2] + width, batch + out[-1] + width)
    if sorted(left) != sorted(wanted[0]) or sorted(right) != sorted(wanted[1]):
        return _unread_equation(search, node)
    return ScoresProduct(
        node=node,
        query=_ordered(nodes, query, left, wanted[0]),
        key=_ordered(nodes, key, right, wanted[1]),
        factor=factor,
        rank=len(out),
    )


def _einsum_values(search: GraphFacts, nodes: Nodes, step: PathNode) -> ValuesProduct | UnreadReason:
    node = step.node
    letters = _letters(search, node)
    weights, value = node.inputs[step.position], node.inputs[1 - step.position]
    if letters is None or weights is None or value is None:
        return _unread_equation(search, node)
    held, other, out = (letters[step.position], letters[1 - step.position], letters[2])
    batch, width = held[:-2], set(other) - set(held)
    if len(width) != 1 or held[-1] in out:
        return _unread_equation(search, node)
    ordered = batch + held[-2] + "".join(width)
    wanted = batch + held[-1] + "".join(width)
    if sorted(other) != sorted(wanted) or sorted(out) != sorted(ordered):
        return _unread_equation(search, node)
    order = tuple(ordered.index(letter) for letter in out)
    return ValuesProduct(
        node=node,
        weights=weights,
        value=_ordered(nodes, value, other, wanted),
        order=None if order == tuple(range(len(order))) else order,
    )


def _letters(search: GraphFacts, node: ir.Node) -> tuple[str, str, str] | None:
    """Subscripts of both operands and the output of an Einsum, one letter per axis; None if they cannot be read."""
    attribute = node.attributes.get("equation")
    text = attribute.as_string().replace(" ", "") if attribute else ""
    sides = text.replace("->", ",").split(",")
    if len(sides) != 3 or "->" not in text or len(node.inputs) != 2:
        return None
    if "..." in text:
        sizes = search.sizes_of(node.inputs[0])
        if sizes is None or not all(side.startswith("...") for side in sides):
            return None
        free = [letter for letter in string.ascii_letters if letter not in text]
        batch = "".join(free[: len(sizes) - len(sides[0]) + 3])
        sides = [batch + side[3:] for side in sides]
    if any(len(set(side)) != len(side) for side in sides) or not 3 <= len(sides[2]) <= 4:
        return None
    return sides[0], sides[1], sides[2]


def _ordered(nodes: Nodes, value: ir.Value, have: str, wanted: str) -> ir.Value:
    return transposed(nodes, value, [have.index(letter) for letter in wanted])


def _unread_equation(search: GraphFacts, node: ir.Node) -> UnreadReason:
    attribute = node.attributes.get("equation")
    equation = attribute.as_string() if attribute else ""
    return UnreadReason(f"the equation '{equation}' is not read: node {search.name_of(node)}")


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return float(attribute.value) if attribute else default


def _is_scaled(node: ir.Node) -> bool:
    """Whether a FusedMatMul or Gemm is a product of query and key, plain or transposed, times a constant."""
    if node.op_type == "FusedMatMul":
        return _only(node, "transB", "alpha")
    return node.op_type == "Gemm" and _only(node, "transB", "alpha", "beta") and len(node.inputs) == 2


def _only(node: ir.Node, *names: str) -> bool:
    """Whether every attribute of a node except the named ones has a neutral value."""
    neutral: Sequence[object] = (0, 1.0)
    return all(attribute.value in neutral for name, attribute in node.attributes.items() if name not in names)
