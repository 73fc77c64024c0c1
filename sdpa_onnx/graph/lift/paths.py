"""The ways between a softmax and the two products around it; says where they lead, not what they compute."""

from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.lift.graph_facts import GraphFacts

__all__ = ["PathNode", "from_products", "into_products"]

_PRODUCTS = frozenset({"MatMul", "Einsum", "Gemm", "FusedMatMul"})
# Nodes on a way, of any meaning: which of them can be read is decided where they are read.
_PASSED = frozenset(
    [
        "Add",
        "Cast",
        "CastLike",
        "Clip",
        "DequantizeLinear",
        "Div",
        "Dropout",
        "Expand",
        "Flatten",
        "Identity",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "QuantizeLinear",
        "Reshape",
        "Squeeze",
        "Sub",
        "Tanh",
        "Transpose",
        "Unsqueeze",
        "Where",
    ]
)
# Longest chain seen between a product and its softmax: casts, scale, softcap (3), two masks, guards.
_STEPS = 16
# A chain of sums branches at each: no attention has more sums than masks.
_WAYS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PathNode:
    """A node on a way, and the input by which the way enters it."""

    node: ir.Node
    position: int


def from_products(search: GraphFacts, value: ir.Value) -> list[tuple[ir.Node, tuple[PathNode, ...]]]:
    """Every product that a value comes from, the nearest first, with the nodes between, the product's side first.

    A product with constant weights of two axes is a layer, and no product of queries and keys.
    """
    found: list[tuple[ir.Node, tuple[PathNode, ...]]] = []
    ways: list[tuple[ir.Value, tuple[PathNode, ...]]] = [(value, ())]
    for _ in range(_STEPS):
        longer: list[tuple[ir.Value, tuple[PathNode, ...]]] = []
        for end, way in ways[:_WAYS]:
            node = end.producer()
            if node is None:
                continue
            if node.op_type in _PRODUCTS:
                if not _is_projection(search, node):
                    found.append((node, way))
            elif node.op_type in _PASSED:
                longer += [
                    (entered, (PathNode(node=node, position=position), *way))
                    for position, entered in enumerate(node.inputs)
                    if entered is not None and _carries(node, position) and not search.is_constant(entered)
                ]
        ways = longer
    return found


def into_products(value: ir.Value) -> list[tuple[PathNode, tuple[PathNode, ...]]]:
    """Every product that a value enters, with the nodes between, the value's side first."""
    found: list[tuple[PathNode, tuple[PathNode, ...]]] = []
    ways: list[tuple[ir.Value, tuple[PathNode, ...]]] = [(value, ())]
    seen: set[tuple[ir.Node, int]] = set()
    for _ in range(_STEPS):
        longer: list[tuple[ir.Value, tuple[PathNode, ...]]] = []
        for end, way in ways:
            for node, position in end.uses():
                step = PathNode(node=node, position=position)
                if (node, position) in seen:
                    continue
                seen.add((node, position))
                if node.op_type in _PRODUCTS:
                    found.append((step, way))
                elif node.op_type in _PASSED and _carries(node, position):
                    longer += [(output, (*way, step)) for output in node.outputs[:1]]
        ways = longer
    return found


def _is_projection(search: GraphFacts, node: ir.Node) -> bool:
    weights = node.inputs[1] if len(node.inputs) > 1 else None
    sizes = search.sizes_of(weights)
    return weights is not None and sizes is not None and len(sizes) == 2 and search.is_constant(weights)


def _carries(node: ir.Node, position: int) -> bool:
    """Whether an input carries the numbers that the node passes on, rather than a shape, condition or divisor."""
    match node.op_type:
        case "Add" | "Sub" | "Mul" | "Div":
            return len(node.inputs) == 2
        case "Max" | "Min":
            return True
        case "Where":
            return position in (1, 2) and len(node.inputs) == 3
        case _:
            return position == 0
