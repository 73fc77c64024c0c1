"""Inputs as arrays of types that numpy has, in the order of a runtime's own inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .arrays import BFLOAT16, ONNX_TYPES, Bits
from .pipe import RefusalError

__all__ = ["bfloat16_array", "in_order", "own_order", "plain_arrays"]

# The others travel as unsigned integers.
_PLAIN = frozenset(ONNX_TYPES.values()) - {BFLOAT16}
_WORDS = {8: "text", BFLOAT16: "bfloat16"}


def plain_arrays(feeds: Mapping[str, Bits]) -> dict[str, Any]:
    """The arrays by name, in C order.

    Raises:
        RefusalError: A type that numpy lacks.
    """
    for _, onnx_type in feeds.values():
        if onnx_type not in _PLAIN:
            raise RefusalError(f"takes no {_WORDS.get(onnx_type, f'elements of ONNX type {onnx_type}')}")
    # Not ascontiguousarray, which makes an array of rank 1 of a scalar.
    return {name: np.asarray(array, order="C") for name, (array, _) in feeds.items()}


def bfloat16_array(bits: Bits) -> Any:
    """An array for a runtime that takes the bfloat16 of ml_dtypes.

    Raises:
        RefusalError: A type that numpy lacks too, or ml_dtypes is missing.
    """
    if bits[1] != BFLOAT16:
        return plain_arrays({"": bits})[""]
    try:
        import ml_dtypes
    except ImportError as error:
        raise RefusalError("needs the package ml_dtypes for bfloat16") from error
    return np.asarray(bits[0], order="C").view(ml_dtypes.bfloat16)


def in_order(arrays: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    """The arrays in the order of names.

    Raises:
        RefusalError: One is missing.
    """
    for name in names:
        if name not in arrays:
            raise RefusalError(f"got no array for '{name}'")
    return [arrays[name] for name in names]


def own_order(own: list[str], names: list[str], what: str) -> list[str]:
    """The model's names in the order of the runtime's, which may have changed them: then both are in the same order.

    Raises:
        RefusalError: There are more or fewer.
    """
    if len(own) != len(names):
        raise RefusalError(f"has {len(own)} {what} of the model's {len(names)}")
    return own if set(own) == set(names) else list(names)
