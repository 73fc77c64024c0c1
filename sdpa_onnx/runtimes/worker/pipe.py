"""Messages between a worker and its parent: a JSON header, then the raw bytes of arrays. Knows no runtime.

A type that numpy has not, such as bfloat16, travels by its name, so both sides must have imported ml_dtypes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

__all__ = ["RefusalError", "ReportedError", "is_refusal", "receive", "send"]

# `numpy.dtype.isbuiltin` of a type that another package registered.
_REGISTERED = 2


class RefusalError(Exception):
    """What the worker itself refuses: a predicate, to which the parent adds who."""


def is_refusal(error: Exception) -> bool:
    """Whether an engine refuses: its file may have a class of that name of its own, where this one is not found."""
    return any(kind.__name__ == RefusalError.__name__ for kind in type(error).__mro__)


class ReportedError(Exception):
    """What one of our own runtimes refuses, in a whole sentence.

    Args:
        sentence: It.
        cause: Text of what the runtime raised, or "".
    """

    def __init__(self, sentence: str, *, cause: str = "") -> None:
        super().__init__(sentence)
        self.cause = cause


def send(
    pipe: Connection[Any, Any], header: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]] | None = None
) -> None:
    """Send a header and arrays by name.

    Raises:
        OSError: If the other side is gone.
    """
    arrays = {name: np.asarray(array) for name, array in (arrays or {}).items()}
    described = [_description(name, array) for name, array in arrays.items()]
    pipe.send_bytes(json.dumps({**header, "arrays": described}, default=_python_number).encode())
    for array in arrays.values():
        if not array.dtype.hasobject:
            pipe.send_bytes(_bytes(np.ascontiguousarray(array)))


def receive(pipe: Connection[Any, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """The counterpart of `send`; every array in memory of its own.

    Raises:
        EOFError, OSError: If the other side is gone.
    """
    header = json.loads(pipe.recv_bytes())
    return header, {each["name"]: _received(pipe, each) for each in header.pop("arrays")}


def _description(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    dtype = array.dtype.name if array.dtype.isbuiltin == _REGISTERED else array.dtype.str
    described = {"name": name, "dtype": dtype, "shape": list(array.shape)}
    if array.dtype.hasobject:  # texts
        described["values"] = array.ravel().tolist()
    return described


def _received(pipe: Connection[Any, Any], described: dict[str, Any]) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.empty(described["shape"], np.dtype(described["dtype"]))
    if array.dtype.hasobject:
        array.reshape(-1)[:] = described["values"]
    else:
        pipe.recv_bytes_into(_bytes(array))
    return array


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _python_number(value: Any) -> Any:
    """A number of numpy's in a header, as a plug-in may report it."""
    return value.item()
