"""Simpler arrays for a failing attention: zeros, ones, small whole numbers, few digits.

Pure: whether it still fails on them is asked elsewhere. Sizes stay.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.workflows.check.case_trial import CaseTrial

__all__ = ["element_places", "simpler_arrays", "simpler_element"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]

# Arrays of at most this many elements are also simplified element by element.
_FEW_ELEMENTS = 48
_PLAIN = (0, 1)

# Simplest first. NaN and infinity stay where they are: they may be what fails.
_SIMPLER: tuple[Callable[[Float64], Float64], ...] = (
    np.zeros_like,
    np.ones_like,
    lambda numbers: np.clip(np.rint(numbers), -3, 3),
    np.rint,
    lambda numbers: np.rint(4 * numbers) / 4,
    lambda numbers: np.rint(64 * numbers) / 64,
)
# The first of them that keeps different numbers apart.
_ROUNDED = 4


def simpler_arrays(trial: CaseTrial, *, only_rounded: bool = False) -> Iterator[CaseTrial]:
    """Each array as a whole, simplest first; an array is never offered something less simple than it is.

    Args:
        trial: With given inputs.
        only_rounded: Keep different numbers, as where the numbers are not what fails.
    """
    inputs = trial.draw()
    for name, array in inputs.named().items():
        for simpler in _whole(name, array, trial.case.kv_seq_len, _SIMPLER[_ROUNDED:] if only_rounded else _SIMPLER):
            yield replace(trial, inputs=replace(inputs, **{name: simpler}))


def element_places(trial: CaseTrial) -> list[tuple[str, int]]:
    """Array and flat index of every element that is neither 0 nor 1, in small arrays."""
    arrays = trial.draw().named()
    few = {
        name: array
        for name, array in arrays.items()
        if name not in ("attn_mask", "nonpad_kv_seqlen") and array.size <= _FEW_ELEMENTS
    }
    return [
        (name, place) for name, array in few.items() for place in range(array.size) if array.flat[place] not in _PLAIN
    ]


def simpler_element(trial: CaseTrial, name: str, place: int) -> Iterator[CaseTrial]:
    """The same with one element 0, else 1."""
    inputs = trial.draw()
    for number in _PLAIN:
        changed = getattr(inputs, name).copy()
        changed.flat[place] = number
        yield replace(trial, inputs=replace(inputs, **{name: changed}))


def _whole(name: str, array: Array, kv_seq_len: int, ways: Sequence[Callable[[Float64], Float64]]) -> Iterator[Array]:
    if name == "nonpad_kv_seqlen":
        full = np.full_like(array, kv_seq_len)
        yield from () if np.array_equal(array, full) else (full,)
    elif array.dtype == np.bool_:
        yield from () if bool(array.all()) else (np.ones_like(array),)
    else:
        yield from _rounded(array, ways)


def _rounded(array: Array, ways: Sequence[Callable[[Float64], Float64]]) -> Iterator[Array]:
    wide = array.astype(np.float64)
    for simplify in ways:
        with np.errstate(invalid="ignore", over="ignore"):
            simpler = simplify(wide) + 0.0  # no negative zeros
        if np.array_equal(simpler, wide, equal_nan=True):
            return
        yield simpler.astype(array.dtype)
