"""Constant folding for single values: compute what depends on constants and axis sizes alone.

Exporters compute scales, axes and target shapes by short chains of nodes, such as Shape - Slice - Cast - Sqrt - Div
in attention exported through TorchScript. Does not change the graph, and does not read large tensors.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.domains import CONTRIB_DOMAIN, is_standard
from sdpa_onnx.graph.given_numbers import given_number
from sdpa_onnx.graph.lift.sizes import SizeEntry, SymbolicSize

__all__ = ["Constants"]

# Integers that depend on sizes are arrays of dtype object: int or SymbolicSize.
Array = NDArray[Any]

# Holds a causal buffer of 2048 x 2048 positions; projection weights are larger and are never needed.
_MOST_ELEMENTS = 2**22
# The longest chains that exporters write for one number or shape have about twenty nodes.
_MOST_STEPS = 128
# What numpy raises on a SymbolicSize (TypeError, AttributeError) or on incompatible operands.
_NOT_COMPUTABLE = (TypeError, ValueError, IndexError, KeyError, ArithmeticError, AttributeError)


class Constants:
    """Evaluates values backwards through their producers, each once.

    Args:
        sizes_of: Returns the axis sizes of a value, or None if its rank is unknown.
        open_values: Initializers that are graph inputs too, so that a caller may override them.
    """

    def __init__(
        self, sizes_of: Callable[[ir.Value], tuple[SizeEntry, ...] | None], open_values: Collection[ir.Value] = ()
    ) -> None:
        self._sizes_of = sizes_of
        self._open = frozenset(open_values)
        self._known: dict[ir.Value, Array | None] = {}

    def of(self, value: ir.Value | None) -> Array | None:
        """The value's array, or None unless every entry is a number."""
        found = self.partly(value)
        if found is None or found.dtype != object:
            return found
        return None if any(isinstance(entry, SymbolicSize) for entry in found.flat) else found.astype(np.int64)

    def is_one(self, value: ir.Value) -> bool:
        """Whether a value is constant. Reads contents only if nodes compute the value."""
        node = value.producer()
        if node is None:
            return value.const_value is not None and value not in self._open
        if _is_dequantised(node):  # a weight, perhaps a large one
            return all(one is None or self.is_one(one) for one in node.inputs)
        return node.op_type == "Constant" or self.of(value) is not None

    def partly(self, value: ir.Value | None) -> Array | None:
        """The value's array, of dtype object with a `SymbolicSize` for each dynamic size; None if unknown."""
        return None if value is None else self._evaluate(value, _MOST_STEPS)

    def _evaluate(self, value: ir.Value, steps: int) -> Array | None:
        if value not in self._known:
            self._known[value] = self._compute(value, steps)
        return self._known[value]

    def _compute(self, value: ir.Value, steps: int) -> Array | None:
        node = value.producer()
        if node is None:
            given = given_number(value)
            return given if given is not None else None if value in self._open else _tensor(value.const_value)
        if node.op_type == "Constant":
            return _constant(node)
        if not (is_standard(node) or _is_dequantised(node)) or node.op_type not in _KNOWN or steps == 0:
            return None
        inputs = self._sizes(node) if node.op_type in ("Shape", "Size") else self._inputs(node, steps - 1)
        if inputs is None:
            return None
        try:
            with np.errstate(all="ignore"):
                found = _apply(node, inputs)
        except _NOT_COMPUTABLE:
            return None
        return found if found.size <= _MOST_ELEMENTS else None

    def _inputs(self, node: ir.Node, steps: int) -> list[Array] | None:
        found: list[Array] = []
        absent = node.op_type == "Clip"  # each of its limits may be absent
        # Of the second input of CastLike, only the type counts.
        for value in node.inputs[:1] if node.op_type == "CastLike" else node.inputs:
            if value is None and absent:
                continue
            array = None if value is None else self._evaluate(value, steps)
            if array is None:
                return None
            found.append(array)
        return found

    def _sizes(self, node: ir.Node) -> list[Array] | None:
        value = node.inputs[0] if node.inputs else None
        sizes = None if value is None else self._sizes_of(value)
        return None if sizes is None else [np.array(sizes, dtype=object)]


def _apply(node: ir.Node, inputs: list[Array]) -> Array:
    by_node = _BY_NODE.get(node.op_type)
    if by_node is not None:
        return by_node(node, inputs)
    if (
        node.op_type in _BROADCAST
        and math.prod(np.broadcast_shapes(*(array.shape for array in inputs))) > _MOST_ELEMENTS
    ):
        raise ValueError("too large")
    return np.asarray(_BY_INPUTS[node.op_type](*inputs))


def _is_dequantised(node: ir.Node) -> bool:
    return node.op_type == "DequantizeLinear" and (is_standard(node) or node.domain == CONTRIB_DOMAIN)


def _tensor(tensor: ir.TensorProtocol | None) -> Array | None:
    if tensor is None or tensor.size > _MOST_ELEMENTS:
        return None
    try:
        return np.asarray(tensor.numpy())
    except (TypeError, ValueError, OSError):  # a non-numeric type, or an external data file that does not exist
        return None


def _constant(node: ir.Node) -> Array | None:
    for name, attribute in node.attributes.items():
        match name:
            case "value":
                return _tensor(attribute.as_tensor())
            case "value_int" | "value_ints":
                return np.asarray(attribute.value, np.int64)
            case "value_float" | "value_floats":
                return np.asarray(attribute.value, np.float32)
            case _:
                continue
    return None


def _int(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute else default


def _shape(node: ir.Node, inputs: list[Array]) -> Array:
    end = node.attributes.get("end")
    return inputs[0][_int(node, "start", 0) : (end.as_int() if end else None)]


def _size(sizes: Array) -> Array:
    return np.asarray(math.prod(sizes.tolist()), object)


def _cast(node: ir.Node, inputs: list[Array]) -> Array:
    target = ir.DataType(_int(node, "to", 0)).numpy()
    if inputs[0].dtype == object and target.kind == "i":
        return inputs[0]
    return inputs[0].astype(target)


def _cast_like(node: ir.Node, inputs: list[Array]) -> Array:
    pattern = node.inputs[1]
    if pattern is None or pattern.dtype is None or inputs[0].dtype == object:
        raise ValueError("unknown")
    return inputs[0].astype(pattern.dtype.numpy())


def _slice(node: ir.Node, inputs: list[Array]) -> Array:
    data, *others = inputs
    if "starts" in node.attributes:  # before opset 10
        names = [name for name in ("starts", "ends", "axes") if name in node.attributes]
        others = [np.array(node.attributes[name].as_ints()) for name in names]
    starts, ends, *rest = others
    axes = rest[0].tolist() if rest else range(starts.size)
    steps = rest[1].tolist() if len(rest) > 1 else [1] * starts.size
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes, steps, strict=True):
        index[axis] = slice(start, end, step)
    return data[tuple(index)]


def _gather(node: ir.Node, inputs: list[Array]) -> Array:
    return np.asarray(np.take(inputs[0], inputs[1].astype(np.int64), axis=_int(node, "axis", 0)))


def _unsqueeze(node: ir.Node, inputs: list[Array]) -> Array:
    return np.expand_dims(inputs[0], tuple(_axes(node, inputs)))


def _squeeze(node: ir.Node, inputs: list[Array]) -> Array:
    axes = _axes(node, inputs)
    return np.squeeze(inputs[0], tuple(axes) if axes else None)


def _axes(node: ir.Node, inputs: list[Array]) -> list[int]:
    """The axes of Squeeze and Unsqueeze: an input since opset 13, an attribute before."""
    if len(inputs) > 1:
        return [int(axis) for axis in inputs[1].ravel()]
    attribute = node.attributes.get("axes")
    return list(attribute.as_ints()) if attribute else []


def _concat(node: ir.Node, inputs: list[Array]) -> Array:
    return np.concatenate(inputs, axis=_int(node, "axis", 0))


def _reshape(data: Array, shape: Array) -> Array:
    return data.reshape([int(size) for size in shape])


def _divide(one: Array, other: Array) -> Array:
    """Div truncates integers towards zero (operator specification); // is the same because sizes are not negative."""
    return np.asarray(one // other if one.dtype.kind in "iuO" else one / other)


def _power(one: Array, other: Array) -> Array:
    if object in (one.dtype, other.dtype):  # Python integers would grow without limit
        raise ValueError("a power of symbolic sizes")
    return np.asarray(np.power(one, other)).astype(one.dtype)


def _equal(one: Array, other: Array) -> Array:
    """Compare; a symbolic size differs from every negative number, and any other comparison with it is unknown."""
    for left, right in ((one, other), (other, one)):
        if (
            left.dtype == object
            and any(isinstance(entry, SymbolicSize) for entry in left.flat)
            and not (right < 0).all()
        ):
            raise ValueError("unknown")
    return np.asarray(one == other).astype(bool)


def _clip(node: ir.Node, inputs: list[Array]) -> Array:
    """The limits of Clip are attributes up to opset 10, and inputs since."""
    found, *limits = inputs
    if found.dtype == object:  # symbolic sizes
        raise ValueError("unknown")
    given = [value is not None for value in node.inputs[1:3]]
    for position, (name, limit) in enumerate((("min", np.maximum), ("max", np.minimum))):
        attribute = node.attributes.get(name)
        if position < len(given) and given[position]:
            found = limit(found, limits.pop(0))
        elif attribute is not None:
            found = limit(found, found.dtype.type(attribute.as_float()))
    return np.asarray(found)


def _dequantised(node: ir.Node, inputs: list[Array]) -> Array:
    """(integer - zero point) scale, with one scale for all or one for each entry of an axis."""
    data, scale, *zero = inputs
    if _int(node, "block_size", 0) or data.dtype.kind not in "iu":
        raise ValueError("unknown")
    if scale.size != 1:
        around = [1] * data.ndim
        around[_int(node, "axis", 1)] = scale.size
        scale, zero = scale.reshape(around), [one.reshape(around) for one in zero]
    integers = data.astype(np.int64) - (zero[0].astype(np.int64) if zero else 0)
    return np.asarray(integers.astype(scale.dtype) * scale).reshape(data.shape)


def _transpose(node: ir.Node, inputs: list[Array]) -> Array:
    perm = node.attributes.get("perm")
    return np.transpose(inputs[0], perm.as_ints() if perm else None)


def _expand(data: Array, shape: Array) -> Array:
    sizes = np.broadcast_shapes(data.shape, tuple(int(size) for size in shape))
    if math.prod(sizes) > _MOST_ELEMENTS:
        raise ValueError("too large")
    return np.broadcast_to(data, sizes)


def _numbers_only(function: Callable[..., Any]) -> Callable[..., Array]:
    """The function for numbers; symbolic sizes are unknown to it."""

    def apply(*arrays: Array) -> Array:
        if any(array.dtype == object for array in arrays):
            raise ValueError("unknown")
        return np.asarray(function(*arrays))

    return apply


def _full(node: ir.Node, inputs: list[Array]) -> Array:
    shape = [int(size) for size in inputs[0]]
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError("too large")
    attribute = node.attributes.get("value")
    fill = attribute.as_tensor().numpy().ravel()[0] if attribute else np.float32(0)
    return np.full(shape, fill)


_BY_NODE: Mapping[str, Callable[[ir.Node, list[Array]], Array]] = {
    "Shape": _shape,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Gather": _gather,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Concat": _concat,
    "ConstantOfShape": _full,
    "Clip": _clip,
    "Transpose": _transpose,
    "DequantizeLinear": _dequantised,
}
_BY_INPUTS: Mapping[str, Callable[..., Any]] = {
    "Size": _size,
    "Identity": lambda one: one,
    "Reshape": _reshape,
    "Sqrt": np.sqrt,
    "Reciprocal": lambda one: 1 / one,
    "Neg": np.negative,
    "Floor": np.floor,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divide,
    "Mod": np.mod,
    "Pow": _power,
    "Equal": _equal,
    "Not": np.logical_not,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Where": np.where,
    "Expand": _expand,
    "Abs": _numbers_only(np.abs),
    "Exp": _numbers_only(np.exp),
    "Log": _numbers_only(np.log),
    "Tanh": _numbers_only(np.tanh),
    "Sigmoid": _numbers_only(lambda one: 1 / (1 + np.exp(-one))),
    "Softplus": _numbers_only(lambda one: np.logaddexp(one, np.zeros_like(one))),
    "Max": _numbers_only(lambda *all_: functools.reduce(np.maximum, all_)),
    "Min": _numbers_only(lambda *all_: functools.reduce(np.minimum, all_)),
}
_BROADCAST = frozenset(("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Equal", "Where", "Max", "Min"))
_KNOWN = frozenset(_BY_NODE) | frozenset(_BY_INPUTS)
