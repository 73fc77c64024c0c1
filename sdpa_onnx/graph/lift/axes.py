"""Symbolic shape inference for single values: derive axis sizes that ONNX shape inference leaves unknown.

The rules here keep expressions of axes, which ONNX's own do not; where there is none, and nothing is known, the rule
of ONNX or onnxruntime for the operator is applied to the sizes found so far. Computes no tensor contents; `constants`
does.
"""

import functools
import math
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.domains import is_standard, standard_schema
from sdpa_onnx.graph.lift.constants import Constants
from sdpa_onnx.graph.lift.contrib.shapes import contrib_types
from sdpa_onnx.graph.lift.cut_sizes import counted, sliced
from sdpa_onnx.graph.lift.node_shapes import KnownInput, output_types
from sdpa_onnx.graph.lift.sizes import SameSizes, SizeEntry, SymbolicSize

__all__ = ["Axes"]

_Sizes = tuple[SizeEntry, ...]

# What the rules below raise on a malformed node, such as an axis out of range.
_MALFORMED_NODE_ERRORS = (IndexError, KeyError, ValueError, TypeError, ZeroDivisionError, RuntimeError)

# Operators whose output has the shape of their first input.
_SAME_SHAPE = frozenset(
    {
        *("Cast", "CastLike", "Identity", "Dropout", "Softmax", "Neg", "Not", "Tanh", "Sqrt", "LayerNormalization"),
        *("Abs", "Ceil", "Clip", "Cos", "CumSum", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
        *("IsInf", "IsNaN", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Reciprocal", "Relu", "RMSNormalization"),
        *("Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Trilu", "QuantizeLinear", "DequantizeLinear"),
    }
)
# Operators whose output has the shape to which their inputs are broadcast.
_BROADCAST = frozenset(
    {
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod"),
        *("Mul", "Or", "Pow", "Sub", "Where", "Xor"),
    }
)


class Axes:
    """Axis sizes by value, each computed once, and the constants that they depend on.

    Args:
        open_values: Initializers that are graph inputs too, so that a caller may override them.
        opsets: Opset version by domain.
    """

    def __init__(self, open_values: Collection[ir.Value] = (), opsets: Mapping[str, int] | None = None) -> None:
        self.constants = Constants(self.of, open_values)
        self._opsets = opsets or {}
        self._names = SameSizes()
        self._known: dict[ir.Value, _Sizes | None] = {}
        self._dtypes: dict[ir.Value, ir.DataType] = {}

    def of(self, value: ir.Value) -> _Sizes | None:
        """The axis sizes, with a `SymbolicSize` for each that is not static; None if the rank is unknown."""
        if value not in self._known:
            self._known[value] = _named(value)  # ends the recursion in a cyclic graph
            self._known[value] = self._complete(value)
        sizes = self._known[value]
        return None if sizes is None else tuple(self._names.known_as(size) for size in sizes)

    def sizes_in(self, value: ir.Value | None) -> NDArray[Any] | None:
        """An integer array, with a `SymbolicSize` for each entry that depends on an axis; None if unknown."""
        found = self.constants.partly(value)
        if found is None or found.dtype != object:
            return found
        return np.array([self._names.known_as(size) for size in found.flat], dtype=object).reshape(found.shape)

    def _complete(self, value: ir.Value) -> _Sizes | None:
        stated = _named(value)
        if stated is not None and all(isinstance(size, int) for size in stated):
            return stated
        node = value.producer()
        derive = None if node is None or not is_standard(node) else self._rule(node)
        try:
            derived = None if derive is None or node is None else derive(node)
        except _MALFORMED_NODE_ERRORS:
            derived = None
        if node is not None and ((derived is None and stated is None) or value.dtype is None):
            inferred = self._inferred(node, value)
            derived = inferred if derived is None else derived
        if derived is None or (stated is not None and len(stated) != len(derived)):
            return stated
        if stated is not None:
            for old, new in zip(stated, derived, strict=True):
                self._names.note(old, new)
        return derived if stated is None else stated

    def dtype_of(self, value: ir.Value) -> ir.DataType | None:
        """Element type of a value whose sizes were derived before, also where the graph does not state it."""
        return value.dtype if value.dtype is not None else self._dtypes.get(value)

    def _inferred(self, node: ir.Node, value: ir.Value) -> _Sizes | None:
        """The sizes by the rule of ONNX or onnxruntime for the operator; None if that does not know the rank."""
        inputs = [None if one is None else self._known_input(one) for one in node.inputs]
        is_known = standard_schema(node, self._opsets.get("", 0)) is not None
        if is_known and any(one is not None and known is None for one, known in zip(node.inputs, inputs, strict=True)):
            return None
        types = output_types(node, self._opsets, inputs) if is_known else contrib_types(node, inputs)
        found = types[list(node.outputs).index(value)]
        if found is None:
            return None
        self._dtypes[value] = found.dtype
        if found.sizes is None:
            return None
        return tuple(_place(value, axis) if size is None else size for axis, size in enumerate(found.sizes))

    def _known_input(self, value: ir.Value) -> KnownInput | None:
        sizes, dtype = self.of(value), self.dtype_of(value)
        if sizes is None or dtype is None:
            return None
        numbers = self.constants.of(value) if dtype.is_integer() and len(sizes) < 2 else None
        return KnownInput(dtype=dtype, sizes=sizes, numbers=numbers)

    def _rule(self, node: ir.Node) -> Callable[[ir.Node], _Sizes | None] | None:
        if node.op_type in _SAME_SHAPE:
            return self._same
        if node.op_type in _BROADCAST:
            return self._broadcast_inputs
        return {
            "Reshape": self._reshape,
            "Transpose": self._transpose,
            "Expand": self._expand,
            "Tile": self._tile,
            "Gather": self._gather,
            "Squeeze": self._squeeze,
            "Unsqueeze": self._unsqueeze,
            "Concat": self._concat,
            "Slice": self._slice,
            "MatMul": self._product,
            "Range": self._range,
            "ConstantOfShape": self._filled,
        }.get(node.op_type)

    def _input(self, node: ir.Node, position: int = 0) -> _Sizes | None:
        value = node.inputs[position] if position < len(node.inputs) else None
        return None if value is None else self.of(value)

    def _same(self, node: ir.Node) -> _Sizes | None:
        return self._input(node)

    def _transpose(self, node: ir.Node) -> _Sizes | None:
        sizes = self._input(node)
        if sizes is None:
            return None
        perm = node.attributes.get("perm")
        order = perm.as_ints() if perm else tuple(reversed(range(len(sizes))))
        return tuple(sizes[axis] for axis in order) if len(order) == len(sizes) else None

    def _target(self, node: ir.Node) -> list[SizeEntry] | None:
        """The integers in the second input: a target shape, or repeats."""
        target = self.sizes_in(node.inputs[1] if len(node.inputs) > 1 else None)
        if target is None or target.ndim != 1:
            return None
        entries = target.tolist()
        return entries if all(isinstance(entry, int | SymbolicSize) for entry in entries) else None

    def _reshape(self, node: ir.Node) -> _Sizes | None:
        target, before = self._target(node), self._input(node)
        if target is None:
            return None
        found: list[SizeEntry] = []
        for axis, size in enumerate(target):
            if size != 0:
                found.append(size)
            else:  # 0 copies the input's axis at the same position
                found.append(_place(node.outputs[0], axis) if before is None or axis >= len(before) else before[axis])
        left = [axis for axis, size in enumerate(found) if size == -1]
        for axis in left:
            others = [size for size in found if size != -1]
            rest = None if before is None or len(left) > 1 else _quotient(before, others)
            found[axis] = _place(node.outputs[0], axis) if rest is None else rest
        return tuple(found)

    def _expand(self, node: ir.Node) -> _Sizes | None:
        target, sizes = self._target(node), self._input(node)
        if target is None or sizes is None:
            return None
        return self._broadcast(sizes, tuple(target), node.outputs[0])

    def _tile(self, node: ir.Node) -> _Sizes | None:
        repeats, sizes = self._target(node), self._input(node)
        if repeats is None or sizes is None or len(repeats) != len(sizes):
            return None
        return tuple(size if count == 1 else size * count for size, count in zip(sizes, repeats, strict=True))

    def _gather(self, node: ir.Node) -> _Sizes | None:
        sizes, places = self._input(node), self._input(node, 1)
        attribute = node.attributes.get("axis")
        axis = attribute.as_int() if attribute else 0
        if not sizes or places is None:
            return None
        return (*sizes[: axis % len(sizes)], *places, *sizes[axis % len(sizes) + 1 :])

    def _squeeze(self, node: ir.Node) -> _Sizes | None:
        sizes, axes = self._input(node), self._axes(node)
        if sizes is None or axes is None:
            return None
        places = {axis % len(sizes) for axis in axes}
        return tuple(size for axis, size in enumerate(sizes) if axis not in places)

    def _unsqueeze(self, node: ir.Node) -> _Sizes | None:
        sizes, axes = self._input(node), self._axes(node)
        if sizes is None or axes is None:
            return None
        rank = len(sizes) + len(axes)
        places = {axis % rank for axis in axes}
        kept = iter(sizes)
        return tuple(1 if axis in places else next(kept) for axis in range(rank))

    def _axes(self, node: ir.Node) -> list[int] | None:
        """The axes of Squeeze and Unsqueeze: an input since opset 13, an attribute before; None if unknown."""
        attribute = node.attributes.get("axes")
        if attribute is not None:
            return list(attribute.as_ints())
        axes = self.constants.of(node.inputs[1] if len(node.inputs) > 1 else None)
        return None if axes is None else [int(axis) for axis in axes.ravel()]

    def _concat(self, node: ir.Node) -> _Sizes | None:
        parts = [self._input(node, position) for position in range(len(node.inputs))]
        attribute = node.attributes.get("axis")
        first = parts[0]
        if attribute is None or first is None or not first:
            return None
        joined, found = attribute.as_int() % len(first), list(first)
        for part in parts[1:]:
            if part is None or len(part) != len(first):
                return None
            found = [new if isinstance(new, int) else old for old, new in zip(found, part, strict=True)]
        lengths = [part[joined] for part in parts if part is not None]
        found[joined] = functools.reduce(operator.add, lengths)
        return tuple(found)

    def _slice(self, node: ir.Node) -> _Sizes | None:
        """Axes that are not cut keep their size. Those of a body's Slice are unknown to onnx, see `bodies`."""
        sizes = self._input(node)
        if sizes is None:
            return None
        limits = self._limits(node)
        if limits is None:
            return tuple(_place(node.outputs[0], axis) for axis in range(len(sizes)))
        found = list(sizes)
        for axis, limit in limits.items():
            size = sliced(sizes[axis % len(sizes)], *limit)
            found[axis % len(sizes)] = _place(node.outputs[0], axis % len(sizes)) if size is None else size
        return tuple(found)

    def _limits(self, node: ir.Node) -> dict[int, tuple[SizeEntry, SizeEntry, SizeEntry]] | None:
        """Start, end and step of a Slice by axis; None if the axes are unknown. Attributes up to opset 9."""
        names = ("starts", "ends", "axes", "steps")
        if "starts" in node.attributes:
            given = {name: list(node.attributes[name].as_ints()) for name in names if name in node.attributes}
        else:
            inputs = zip(names, node.inputs[1:5], strict=False)
            given = {name: self._entries(value) for name, value in inputs if value is not None}
        count = next((len(known) for known in given.values() if known), 0)
        axes = given.get("axes", list(range(count)))
        if not axes or not all(isinstance(axis, int) for axis in axes):
            return None
        unknown: list[SizeEntry] = [SymbolicSize(("-", 0, 0))] * len(axes)  # no length, so nothing follows from it
        starts, ends = (given.get(name) or unknown for name in ("starts", "ends"))
        steps = given["steps"] or unknown if "steps" in given else [1] * len(axes)
        return dict(zip(axes, zip(starts, ends, steps, strict=True), strict=True))

    def _entries(self, value: ir.Value) -> list[Any]:
        """The integers of a value, with a `SymbolicSize` for each size; [] if they are unknown."""
        found = self.sizes_in(value)
        return [] if found is None else found.ravel().tolist()

    def _range(self, node: ir.Node) -> _Sizes | None:
        limits = [self._entries(value) for value in node.inputs if value is not None]
        if any(len(one) != 1 or not isinstance(one[0], int | SymbolicSize) for one in limits):
            return (_place(node.outputs[0], 0),)
        size = counted(*(one[0] for one in limits))
        return (_place(node.outputs[0], 0) if size is None else size,)

    def _filled(self, node: ir.Node) -> _Sizes | None:
        sizes = None if node.inputs[0] is None else self._entries(node.inputs[0])
        return tuple(sizes) if sizes else None

    def _broadcast_inputs(self, node: ir.Node) -> _Sizes | None:
        found: _Sizes = ()
        for position in range(len(node.inputs)):
            sizes = self._input(node, position)
            if sizes is None:
                return None
            found = self._broadcast(found, sizes, node.outputs[0])
        return found

    def _broadcast(self, left: _Sizes, right: _Sizes, output: ir.Value) -> _Sizes:
        rank = max(len(left), len(right))
        one: _Sizes = (1,) * (rank - len(left)) + left
        other: _Sizes = (1,) * (rank - len(right)) + right
        return tuple(self._wider(a, b, output, axis) for axis, (a, b) in enumerate(zip(one, other, strict=True)))

    def _wider(self, one: SizeEntry, other: SizeEntry, output: ir.Value, axis: int) -> SizeEntry:
        one, other = self._names.known_as(one), self._names.known_as(other)
        if one in (other, 1):
            return other
        if other == 1:
            return one
        # A size that broadcasts with a number above 1 is that number or 1, so the result is the number.
        for size in (one, other):
            if isinstance(size, int):
                return size
        # The entries from 0 on that a slice keeps of `other` wanted ones are as many, or one of one.
        if self._names.wanted(one) == other:
            return other
        return one if self._names.wanted(other) == one else _place(output, axis)

    def _product(self, node: ir.Node) -> _Sizes | None:
        left, right = self._input(node), self._input(node, 1)
        if left is None or right is None or len(left) < 2 or len(right) < 2:
            return None
        return (*self._broadcast(left[:-2], right[:-2], node.outputs[0]), left[-2], right[-1])


def _quotient(sizes_before: _Sizes, parts: list[SizeEntry]) -> SizeEntry | None:
    """The product of `sizes_before` divided by the product of `parts`; None if it is unknown."""
    left, number = list(sizes_before), 1
    for part in parts:
        if part in left:
            left.remove(part)
        elif isinstance(part, int):
            number *= part
        else:
            return None
    numbers = math.prod(size for size in left if isinstance(size, int))
    if number == 0 or numbers % number:
        return None
    sizes = [size for size in left if isinstance(size, SymbolicSize)]
    quotient = numbers // number
    if not sizes:
        return quotient
    product = functools.reduce(operator.mul, sizes)
    return product if quotient == 1 else product * quotient


def _named(value: ir.Value) -> _Sizes | None:
    if value.shape is None:
        return None
    return tuple(
        size if isinstance(size, int) else SymbolicSize(("axis", size.value)) if size.value else _place(value, axis)
        for axis, size in enumerate(value.shape)
    )


def _place(value: ir.Value, axis: int) -> SymbolicSize:
    return SymbolicSize(("axis", value.name, axis))
