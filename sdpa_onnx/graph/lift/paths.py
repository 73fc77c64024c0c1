"""Find the paths between a softmax and the two matrix products around it. Does not interpret the nodes on them."""

from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.lift.graph_facts import GraphFacts

__all__ = ["PathNode", "from_products", "into_products"]

_PRODUCTS = frozenset({"MatMul", "Einsum", "Gemm", "FusedMatMul"})
# Operators that may be on a path; `score_chain` and `weights` decide whether they can be read.
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
# A sink is a column that is added to the scores and dropped from the weights.
_BEFORE = _PASSED | {"Concat", "Pad"}
_AFTER = _PASSED | {"Slice"}
# Longest chain seen between a product and its softmax: casts, scale, softcap (3), two masks, guards.
_STEPS = 16
# Paths branch at every sum; no attention has more sums than masks.
_MOST_PATHS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PathNode:
    """A node on a path, and the position of the input through which the path enters it."""

    node: ir.Node
    position: int


def from_products(search: GraphFacts, value: ir.Value) -> list[tuple[ir.Node, tuple[PathNode, ...]]]:
    """Every product upstream of a value, nearest first, each with the nodes from the product to the value.

    A product with constant weights of rank 2 is a linear layer, not a product of query and key, and is left out.
    """
    found: list[tuple[ir.Node, tuple[PathNode, ...]]] = []
    paths: list[tuple[ir.Value, tuple[PathNode, ...]]] = [(value, ())]
    for _ in range(_STEPS):
        longer: list[tuple[ir.Value, tuple[PathNode, ...]]] = []
        for end, path in paths[:_MOST_PATHS]:
            node = end.producer()
            if node is None:
                continue
            if node.op_type in _PRODUCTS:
                if not _is_projection(search, node):
                    found.append((node, path))
            elif node.op_type in _BEFORE:
                longer += [
                    (entered, (PathNode(node=node, position=position), *path))
                    for position, entered in enumerate(node.inputs)
                    if entered is not None and _carries(node, position) and not search.is_constant(entered)
                ]
        paths = longer
    return found


def into_products(value: ir.Value) -> list[tuple[PathNode, tuple[PathNode, ...]]]:
    """Every product downstream of a value, each with the nodes from the value to the product."""
    found: list[tuple[PathNode, tuple[PathNode, ...]]] = []
    paths: list[tuple[ir.Value, tuple[PathNode, ...]]] = [(value, ())]
    seen: set[tuple[ir.Node, int]] = set()
    for _ in range(_STEPS):
        longer: list[tuple[ir.Value, tuple[PathNode, ...]]] = []
        for end, path in paths:
            for node, position in end.uses():
                step = PathNode(node=node, position=position)
                if (node, position) in seen:
                    continue
                seen.add((node, position))
                if node.op_type in _PRODUCTS:
                    found.append((step, path))
                elif node.op_type in _AFTER and _carries(node, position):
                    longer += [(output, (*path, step)) for output in node.outputs[:1]]
        paths = longer
    return found


def _is_projection(search: GraphFacts, node: ir.Node) -> bool:
    weights = node.inputs[1] if len(node.inputs) > 1 else None
    sizes = search.sizes_of(weights)
    return weights is not None and sizes is not None and len(sizes) == 2 and search.is_constant(weights)


def _carries(node: ir.Node, position: int) -> bool:
    """Whether an input is the data that the node passes on, not a shape, a condition or a parameter."""
    match node.op_type:
        case "Add" | "Sub" | "Mul" | "Div":
            return len(node.inputs) == 2
        case "Max" | "Min" | "Concat":
            return True
        case "Where":
            return position in (1, 2) and len(node.inputs) == 3
        case _:
            return position == 0
