"""Interval arithmetic for ONNX operators: propagate lower and upper bounds of every entry through one node.

Knows no graph. A span that is wider than necessary is still correct.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["MISFIT", "SPAN_OPERATORS", "Call", "Span", "hidden_below", "unknown_span"]

Array = NDArray[Any]

# What numpy and ONNX shape inference raise for incompatible operands.
MISFIT = (ValueError, IndexError, TypeError, RuntimeError, ArithmeticError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Inclusive bounds of every entry; both arrays have the shape of the value."""

    low: Array
    high: Array

    @classmethod
    def exactly(cls, array: Array) -> "Span":
        return cls(low=array, high=array)

    @property
    def is_exact(self) -> bool:
        return self.low is self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A node and the bounds of its inputs.

    Args:
        node: The node.
        inputs: Bounds by position; None = absent input.
        evaluate: Computes the node's output from arrays, one for each position.
    """

    node: ir.Node
    inputs: "Sequence[Span | None]"
    evaluate: Callable[..., Array]

    @property
    def present(self) -> list[Span]:
        return [span for span in self.inputs if span is not None]


_Operator = Callable[[Call], "Span | None"]


def unknown_span(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Span:
    """Bounds of a value with unknown contents; for integers in float64, where no bound overflows."""
    if dtype == np.bool_:
        low, high = np.asarray(False), np.asarray(True)
    else:
        kind = np.dtype(np.float64) if dtype.kind in "iu" else dtype
        low, high = np.asarray(-np.inf, kind), np.asarray(np.inf, kind)
    return Span(low=np.broadcast_to(low, shape), high=np.broadcast_to(high, shape))


def hidden_below(dtype: "np.dtype[Any]") -> float:
    """The largest number in a float mask that counts as hidden: half the lowest number of its type.

    Half, because a position bias or another mask may be added to the lowest number.
    Minus infinity for a type that masks do not have.
    """
    import ml_dtypes

    try:
        return float(ml_dtypes.finfo(dtype).min) / 2  # type: ignore[no-untyped-call]  # it has no types
    except ValueError:
        return -np.inf


def _rising(call: Call) -> Span:
    """Operators that are monotonically increasing in all inputs, or that only move entries."""
    low = call.evaluate(*(None if span is None else span.low for span in call.inputs))
    return _tidy(low, call.evaluate(*(None if span is None else span.high for span in call.inputs)))


def _moved(call: Call) -> Span | None:
    """Operators that move entries of the first input by parameters in the others, which must be known."""
    if any(span is not None and not span.is_exact for span in call.inputs[1:]):
        return None
    return _rising(call)


def _gathered(call: Call) -> Span | None:
    """Gather; from a known table, any index returns an entry of the table."""
    moved = _moved(call)
    table, index = call.present
    if moved is not None or not table.is_exact or not table.low.size or bool(_is_nan(table.low).any()):
        return moved
    axis = call.node.attributes.get("axis")
    at = (axis.as_int() if axis is not None else 0) % table.low.ndim
    shape = (*table.low.shape[:at], *index.low.shape, *table.low.shape[at + 1 :])
    low, high = np.asarray(table.low.min()), np.asarray(table.low.max())
    return Span(low=np.broadcast_to(low, shape), high=np.broadcast_to(high, shape))


def _falling(call: Call) -> Span:
    opposite = _rising(call)
    return Span(low=opposite.high, high=opposite.low)


def _cast(call: Call) -> Span | None:
    (span,) = call.present
    if call.node.attributes["to"].as_int() != ir.DataType.BOOL or span.low.dtype == np.bool_:
        kind = ir.DataType(call.node.attributes["to"].as_int()).numpy()
        if kind.kind in "iu" and span.low.dtype.kind == "f":
            return Span(low=np.trunc(span.low.astype(np.float64)), high=np.trunc(span.high.astype(np.float64)))
        return _rising(call)
    return Span(low=(span.low > 0) | (span.high < 0), high=(span.low != 0) | (span.high != 0))


def _add(call: Call) -> Span:
    """Add; a term added to a hidden entry is assumed to be far below the largest float, so the entry stays hidden."""
    one, other = call.present
    total = _rising(call)
    high = total.high
    for hidden, added in ((one, other), (other, one)):
        stays = (hidden.high <= hidden_below(hidden.high.dtype)) & (added.high == np.inf)
        high = np.where(stays, hidden.high, high)
    return _tidy(total.low, high)


def _subtract(call: Call) -> Span:
    one, other = call.present
    return _tidy(call.evaluate(one.low, other.high), call.evaluate(one.high, other.low))


def _corners(call: Call) -> Span:
    """Mul; the least and the greatest product are products of bounds."""
    one, other = call.present
    products = [call.evaluate(left, right) for left in (one.low, one.high) for right in (other.low, other.high)]
    if not any(bool(_is_nan(product).any()) for product in products):
        return Span(low=np.minimum.reduce(products), high=np.maximum.reduce(products))
    spans = [_tidy(product, product) for product in products]
    low = np.minimum.reduce([span.low for span in spans])
    return Span(low=low, high=np.maximum.reduce([span.high for span in spans]))


def _where(call: Call) -> Span:
    condition, yes, no = call.present
    kind = np.result_type(yes.low.dtype, no.low.dtype)
    never, always = ~condition.high.astype(np.bool_), condition.low.astype(np.bool_)
    low = np.where(always, yes.low, np.where(never, no.low, np.minimum(yes.low, no.low)))
    high = np.where(always, yes.high, np.where(never, no.high, np.maximum(yes.high, no.high)))
    return Span(low=low.astype(kind), high=high.astype(kind))


def _greater(call: Call) -> Span:
    one, other = call.present
    return Span(low=call.evaluate(one.low, other.high), high=call.evaluate(one.high, other.low))


def _less(call: Call) -> Span:
    one, other = call.present
    return Span(low=call.evaluate(one.high, other.low), high=call.evaluate(one.low, other.high))


def _equal(call: Call) -> Span:
    one, other = call.present
    never = (one.high < other.low) | (one.low > other.high)
    always = (one.low == one.high) & (other.low == other.high) & (one.low == other.low)
    return Span(low=always, high=~never)


def _none(call: Call) -> None:
    """Operators without bounds, evaluated only if every input is known exactly."""


def _is_nan(array: Array) -> "NDArray[np.bool_]":
    return np.asarray(array != array)  # noqa: PLR0124  # also of bfloat16, which numpy's isnan does not know


def _tidy(low: Array, high: Array) -> Span:
    """Replace NaN bounds, such as infinity minus infinity, by infinite ones."""
    if low.dtype.kind in "biu" and high.dtype.kind in "biu":
        return Span(low=low, high=high)
    least, greatest = np.asarray(-np.inf, low.dtype), np.asarray(np.inf, high.dtype)
    return Span(low=np.where(_is_nan(low), least, low), high=np.where(_is_nan(high), greatest, high))


_MOVES = (
    *("Identity", "Expand", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Slice", "GatherND", "Flatten"),
    *("GatherElements", "Tile", "Trilu", "Split", "ReduceMax", "ReduceMin"),
)
_RISES = ("Concat", "And", "Or", "Min", "Max")
_FALLS = ("Not", "Neg")
_EXACT_ONLY = (
    *("Constant", "ConstantOfShape", "Range", "Div", "Mod", "Sqrt", "Reciprocal", "Pow", "Floor", "Ceil", "Round"),
    *("Exp", "Log", "Abs", "Xor", "CumSum", "ReduceSum", "ReduceProd", "ScatterND", "Pad", "Clip", "Sign", "IsInf"),
    *("IsNaN", "EyeLike", "NonZero", "BitwiseAnd", "BitwiseOr", "BitwiseNot"),
)
SPAN_OPERATORS: Mapping[str, _Operator] = {
    **dict.fromkeys(_MOVES, _moved),
    **dict.fromkeys(_RISES, _rising),
    **dict.fromkeys(_FALLS, _falling),
    **dict.fromkeys(_EXACT_ONLY, _none),
    "Cast": _cast,
    "Gather": _gathered,
    "Add": _add,
    "Sub": _subtract,
    "Mul": _corners,
    "Where": _where,
    "Greater": _greater,
    "GreaterOrEqual": _greater,
    "Less": _less,
    "LessOrEqual": _less,
    "Equal": _equal,
}
