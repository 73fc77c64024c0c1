"""Signs of what an integer input is where no operator limits it: comparisons, slices, sums, sines, and its name.

Weaker than the table of `rules`; used only where that says nothing.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.integers.allowed import Allowed, IntegerKind, IntegerMeaning
from sdpa_onnx.graph.integers.uses import IntegerUse
from sdpa_onnx.graph.lift.size_trial import MisfitError, SizeTrial

__all__ = ["exact", "hinted", "named"]

Array = NDArray[np.generic]

_STRICT = ("Less", "Greater")
_COMPARISONS = (*_STRICT, "LessOrEqual", "GreaterOrEqual", "Equal")
# Between a position and its sine: the product with the frequencies, and changes of shape.
_TO_SINE = frozenset(
    ["Mul", "MatMul", "Einsum", "Div", "Transpose", "Unsqueeze", "Expand", "Concat", "Reshape", "Cast", "Identity"]
)
_MOST_STEPS = 40
# Source: the names that exporters of language models use.
_NAMES: tuple[tuple[str, IntegerKind], ...] = (
    (r"cache_?position|position|\bpos\b", IntegerKind.POSITIONS),
    (r"mask", IntegerKind.MASK),
)


def exact(trial: SizeTrial, value: ir.Value) -> Array | None:
    """The numbers of a value, if they are known in a trial."""
    try:
        span = trial.span(value)
    except MisfitError:
        return None
    return span.low if span is not None and span.is_exact else None


def named(name: str) -> Iterator[IntegerMeaning]:
    """What the name of an input says: the last resort."""
    for pattern, kind in _NAMES:
        if re.search(pattern, name.lower()):
            allowed = Allowed(low=0, high=1) if kind is IntegerKind.MASK else None
            yield IntegerMeaning(kind=kind, allowed=allowed, where=(f"its name, '{name}'",))
            return


def hinted(uses: Sequence[IntegerUse], trial: SizeTrial, shape: tuple[int, ...]) -> Iterator[IntegerMeaning]:
    """What the uses of an input say.

    Args:
        uses: See `uses_of`.
        trial: With the input all 0.
        shape: Of the input.
    """
    for use in uses:
        if not is_standard(use.node):
            continue
        operator = use.node.op_type
        if operator in _COMPARISONS:
            yield from _compared(use, trial, shape)
        elif operator == "Slice" and use.position in (1, 2):
            yield from _sliced(use, trial)
        elif operator == "CumSum" and use.position == 0:
            yield _mask("CumSum")
        elif operator == "Cast":
            yield from _cast(use)


def _mask(where: str) -> IntegerMeaning:
    return IntegerMeaning(kind=IntegerKind.MASK, allowed=Allowed(low=0, high=1), where=(where,))


def _compared(use: IntegerUse, trial: SizeTrial, shape: tuple[int, ...]) -> Iterator[IntegerMeaning]:
    """A comparison with positions 0, 1, 2, ..., or of a mask with 0 or 1."""
    node, first = use.node, use.position == 0
    value = node.inputs[1 if first else 0]
    other = None if value is None else exact(trial, value)
    own = exact(trial, use.value)
    if other is None or not other.size or other.dtype.kind not in "iu" or own is None:
        return
    least, most = int(other.min()), int(other.max())
    if least == most:
        if most in (0, 1) and not own.any():
            yield _mask(node.op_type)
        return
    start = int(own.max(initial=0))
    counts = node.op_type in _STRICT and first == (node.op_type == "Greater")
    is_row = bool(shape) and shape[-1] > 1 and (len(shape) > 1 or other.size > shape[-1]) and not counts
    kind = IntegerKind.POSITIONS if is_row else IntegerKind.LENGTH if counts else IntegerKind.START
    high = max(0, most - start + (1 if counts else 0))
    allowed = Allowed(low=min(1, high) if counts else 0, high=high)
    yield IntegerMeaning(kind=kind, allowed=allowed, where=(f"{node.op_type} with positions",))


def _sliced(use: IntegerUse, trial: SizeTrial) -> Iterator[IntegerMeaning]:
    data, node = use.node.inputs[0], use.node
    axes_value = node.inputs[3] if len(node.inputs) > 3 else None
    axes = np.zeros(1, np.int64) if axes_value is None else exact(trial, axes_value)
    try:
        shape = None if data is None else trial.sizes(data)
    except MisfitError:
        return
    if shape is None or axes is None or axes.size != 1:
        return
    size, is_start = shape[int(axes.reshape(-1)[0])], use.position == 1
    kind = IntegerKind.START if is_start else IntegerKind.LENGTH
    allowed = Allowed(low=0 if is_start else min(1, size), high=max(0, size - 1) if is_start else size)
    yield IntegerMeaning(kind=kind, allowed=allowed, where=(f"Slice {'starts' if is_start else 'ends'}",))


def _cast(use: IntegerUse) -> Iterator[IntegerMeaning]:
    """A cast to boolean is a mask; one to a float is a position if a sine follows, and a mask if 1 - x does."""
    target = ir.DataType(use.node.attributes["to"].as_int())
    if target is ir.DataType.BOOL:
        yield _mask("Cast to BOOL")
    if not target.is_floating_point():
        return
    waiting = list(use.node.outputs)
    for value in waiting:  # grows
        for following in value.uses():
            node = following.node
            if node.op_type in ("Sin", "Cos"):
                yield IntegerMeaning(kind=IntegerKind.POSITIONS, allowed=None, where=(node.op_type,))
                return
            if node.op_type == "Sub" and following.idx == 1:
                yield _mask("Sub")
                return
            if node.op_type in _TO_SINE and len(waiting) < _MOST_STEPS:
                waiting += node.outputs
