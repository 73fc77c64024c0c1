"""Numbers in a graph that are compared with a length or a position: windows, branches, clipped distances, chunks.

Beyond each of them a graph may compute something else, so a check must reach beyond them. Runs nothing and opens no
tensor file.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard

__all__ = ["compared_lengths"]

_ORDER = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Min", "Max", "Clip"})
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Clip", "Where", "Concat"})
# The first input is the data, and the others are axes, shapes and indices.
_SAME_NUMBERS = frozenset(
    {"Abs", "Neg", "Cast", "CastLike", "Identity", "Floor", "Ceil", "Round"}
    | {"Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand", "Tile", "Transpose", "Slice", "Gather"}
)
_POSITIONS = frozenset({"Range", "Shape", "Size", "CumSum", "NonZero"})
# Largest number of elements of a constant that is read, such as one window for each head.
_MOST_ELEMENTS = 64
# The largest of 32 bits and above stand for "no limit".
_NO_LIMIT = 2**31 - 1
# Integers that are compared with a vocabulary and not with a length.
_TOKENS = ("input_ids", "token")


def compared_lengths(model: ir.Model) -> tuple[int, ...]:
    """The numbers of 2 and more with which a graph compares lengths or positions, in subgraphs too; smallest first.

    Counted are constants on the way from positions to a comparison, diagonals of Trilu, constant bounds of a
    Slice along an axis that may change, and sides of square tables of which a part is read, such as stored masks.
    """
    found = {side for value in model.graph.initializers.values() if (side := _side(value))}
    for node in model.graph.all_nodes():
        if is_standard(node):
            found |= set(_of_node(node))
    return tuple(sorted(number for number in found if 2 <= number < _NO_LIMIT))


def _side(value: ir.Value) -> int:
    """The side of a stored square of which a part is read; 0 if it is none."""
    sides = [] if value.shape is None else [side for side in value.shape.dims[-2:] if isinstance(side, int)]
    is_read_in_part = any(use.node.op_type in ("Slice", "Gather") and use.idx == 0 for use in value.uses())
    return sides[0] if len(sides) == 2 and sides[0] == sides[1] and is_read_in_part else 0  # a square


def _of_node(node: ir.Node) -> Iterator[int]:
    if node.op_type in _ORDER:
        constants: set[int] = set()
        reached = [_reaches_positions(value, constants) for value in node.inputs if value is not None]
        if any(reached):
            yield from constants
    elif node.op_type == "Trilu" and len(node.inputs) > 1:
        yield from _numbers(node.inputs[1])
    elif node.op_type == "Slice":
        yield from _bounds(node)


def _reaches_positions(start: ir.Value, constants: set[int]) -> bool:
    """Whether a value is computed from lengths or positions; the constants on the way are added."""
    waiting, seen, reached = [start], set[int](), False
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        node = value.producer()
        constants |= set(_numbers(value))
        if node is None:
            reached = reached or _is_position_input(value)
        elif node.op_type in _POSITIONS:
            reached = True
        elif node.op_type in _ARITHMETIC:
            waiting += [one for one in node.inputs[node.op_type == "Where" :] if one is not None]
        elif node.op_type in _SAME_NUMBERS and node.inputs[0] is not None:
            waiting.append(node.inputs[0])
    return reached


def _is_position_input(value: ir.Value) -> bool:
    is_integer = value.dtype is not None and value.dtype.is_integer()
    return value.is_graph_input() and is_integer and not any(word in (value.name or "") for word in _TOKENS)


def _bounds(node: ir.Node) -> Iterator[int]:
    """Constant starts and ends of a Slice, along axes whose length may change."""
    data = node.inputs[0]
    if data is None or data.shape is None:
        return
    given = list(_numbers(node.inputs[3], signed=True)) if len(node.inputs) > 3 and node.inputs[3] is not None else []
    for bound in node.inputs[1:3]:
        numbers = list(_numbers(bound, signed=True))
        axes = given or list(range(len(numbers)))
        for axis, number in zip(axes, numbers, strict=False):
            if -len(data.shape) <= axis < len(data.shape) and not isinstance(data.shape[axis], int):
                yield abs(number)


def _numbers(value: ir.Value | None, *, signed: bool = False) -> Iterator[int]:
    """The whole numbers in a small constant, without their sign; nothing if it is none."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.size > _MOST_ELEMENTS:
        return
    array = np.asarray(tensor.numpy())
    if array.dtype.kind not in "iuf":
        return
    for number in array.ravel().tolist():
        if np.isfinite(number) and number == int(number):
            yield int(number) if signed else abs(int(number))
