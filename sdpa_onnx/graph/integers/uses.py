"""Follow an integer input through a graph to every node that gives its numbers a meaning. Evaluates nothing."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard

__all__ = ["IntegerUse", "uses_of"]

# Operators whose integer output follows from an integer input, by the positions of such inputs; None = all.
_PASSES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Min", "Max", "Concat"), None),
    **dict.fromkeys(("Where",), (1, 2)),
    **dict.fromkeys(("Range",), (0, 1)),
    **dict.fromkeys(
        ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand", "Clip", "Slice"), (0,)
    ),
    **dict.fromkeys(("Gather", "Tile", "Split", "Div", "Mod", "ReduceSum", "ReduceMax", "ReduceMin", "Neg"), (0,)),
}
# Uses of one input that are looked at; a deep model repeats the same ones in every layer.
_MOST_USES = 256


@dataclass(frozen=True, slots=True)
class IntegerUse:
    """One use of a value that follows from an integer input.

    Args:
        node: The node that uses it.
        position: Which input of the node it is.
        value: The value; its numbers may differ from those of the graph input.
    """

    node: ir.Node
    position: int
    value: ir.Value


def uses_of(start: ir.Value) -> Iterator[IntegerUse]:
    """Every use of an input and of the integers that follow from it, the nearest first."""
    waiting, seen, count = [start], {start}, 0
    for value in waiting:
        for use in value.uses():
            count += 1
            if count > _MOST_USES:
                return
            node = use.node
            yield IntegerUse(node, use.idx, value)
            passes = _PASSES.get(node.op_type, ()) if is_standard(node) else ()
            if passes is not None and use.idx not in passes:
                continue
            for output in node.outputs:
                if output not in seen and _is_integer(node, output):
                    seen.add(output)
                    waiting.append(output)


def _is_integer(node: ir.Node, output: ir.Value) -> bool:
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].as_int()).is_integer()
    return output.dtype is None or output.dtype.is_integer()
