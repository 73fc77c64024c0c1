"""Faults of reading one input: it is ignored, read from the next or the first entry of an axis, or off by one.

Pure functions of the array. What a runtime answers to the changed input is the output of one that has the fault, so
these can be planted in any operator; see `workflows.verify.plant_inputs`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["InputFault", "input_faults"]

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFault:
    """One way to read an input wrongly.

    Args:
        name: Stable slug, such as `next-of-axis-1`.
        says: Description, a clause that follows the name of the input: "is ignored".
        change: The array that is read instead; same shape and type.
    """

    name: str
    says: str
    change: Callable[[Array], Array]


def input_faults(array: Array) -> Iterator[InputFault]:
    """The faults that can change what is read of an array."""
    yield InputFault(name="ignored", says="is ignored", change=_ignored)
    for axis, size in enumerate(array.shape):
        if size > 1:
            yield InputFault(
                name=f"next-of-axis-{axis}",
                says=f"is read from the next entry of its axis {axis}",
                change=lambda one, axis=axis: np.roll(one, -1, axis=axis),  # type: ignore[misc]  # the axis of this turn
            )
            yield InputFault(
                name=f"first-of-axis-{axis}",
                says=f"is read from the first entry of its axis {axis}",
                change=lambda one, axis=axis: np.repeat(np.take(one, [0], axis=axis), one.shape[axis], axis=axis),  # type: ignore[misc]  # the axis of this turn
            )
    if array.dtype.kind in "iu":
        for step, word in ((1, "more"), (-1, "less")):
            yield InputFault(
                name=f"one-{word}",
                says=f"is read as one {word}",
                change=lambda one, step=step: (one.astype(np.int64) + step).astype(one.dtype),  # type: ignore[misc]  # the step of this turn
            )


def _ignored(array: Array) -> Array:
    """True, 0 or the greatest length: what hides nothing, adds nothing and shortens nothing."""
    if array.dtype == np.bool_:
        return np.ones_like(array)
    if array.dtype.kind in "iu":
        return np.full_like(array, array.max()) if array.size else array
    return np.zeros_like(array)
