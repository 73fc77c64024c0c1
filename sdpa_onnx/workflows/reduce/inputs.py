"""Propose simpler arrays for a failing attention: zeros, ones, small integers, few binary digits.

Does not change sizes and does not run a case: `ReductionTrials` checks whether it still fails.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.workflows.check.case_trial import CaseTrial

__all__ = ["elements_to_simplify", "simpler_arrays", "simpler_element"]

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
# Index of the first entry that keeps most different numbers different.
_ROUNDED = 4


def simpler_arrays(trial: CaseTrial, *, only_rounded: bool = False) -> Iterator[CaseTrial]:
    """Simplify one array at a time, simplest candidate first; stop at candidates equal to the array.

    Args:
        trial: The trial; its inputs are set.
        only_rounded: Round the numbers, but do not make them equal. For failures that do not depend on them.
    """
    inputs = trial.draw()
    for name, array in inputs.named().items():
        for simpler in _simpler_array(
            name, array, trial.case.kv_seq_len, _SIMPLER[_ROUNDED:] if only_rounded else _SIMPLER
        ):
            yield replace(trial, inputs=replace(inputs, **{name: simpler}, quantisers=inputs.quantisers))


def elements_to_simplify(trial: CaseTrial) -> list[tuple[str, int]]:
    """Array and flat index of every element that is neither 0 nor 1, in small arrays."""
    arrays = trial.draw().named()
    few = {
        name: array
        for name, array in arrays.items()
        if name not in ("attn_mask", "nonpad_kv_seqlen") and array.size <= _FEW_ELEMENTS
    }
    return [
        (name, index) for name, array in few.items() for index in range(array.size) if array.flat[index] not in _PLAIN
    ]


def simpler_element(trial: CaseTrial, name: str, index: int) -> Iterator[CaseTrial]:
    """Set one element to 0, then to 1."""
    inputs = trial.draw()
    for number in _PLAIN:
        changed = getattr(inputs, name).copy()
        changed.flat[index] = number
        yield replace(trial, inputs=replace(inputs, **{name: changed}))


def _simpler_array(
    name: str, array: Array, kv_seq_len: int, simplifications: Sequence[Callable[[Float64], Float64]]
) -> Iterator[Array]:
    if name == "nonpad_kv_seqlen":
        full = np.full_like(array, kv_seq_len)
        yield from () if np.array_equal(array, full) else (full,)
    elif array.dtype == np.bool_:
        yield from () if bool(array.all()) else (np.ones_like(array),)
    else:
        yield from _rounded(array, simplifications)


def _rounded(array: Array, simplifications: Sequence[Callable[[Float64], Float64]]) -> Iterator[Array]:
    wide = array.astype(np.float64)
    for simplify in simplifications:
        with np.errstate(invalid="ignore", over="ignore"):
            simpler = simplify(wide) + 0.0  # no negative zeros
        if np.array_equal(simpler, wide, equal_nan=True):
            return
        yield simpler.astype(array.dtype)
