"""Messages between a worker and its parent: a JSON header, then raw bytes. Knows no runtime."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["RefusalError", "ReportedError", "receive", "send"]


class RefusalError(Exception):
    """What the worker itself refuses: a predicate, to which the parent adds who."""


class ReportedError(Exception):
    """What one of our own runtimes refuses, in a whole sentence."""


def send(
    pipe: Connection[Any, Any], header: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]] | None = None
) -> None:
    """Send a header and one-dimensional int64 arrays."""
    arrays = arrays or {}
    pipe.send_bytes(json.dumps({**header, "arrays": list(arrays)}).encode())
    for array in arrays.values():
        pipe.send_bytes(array.tobytes())


def receive(pipe: Connection[Any, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """The counterpart of `send`.

    Raises:
        EOFError, OSError: If the other side is gone.
    """
    header = json.loads(pipe.recv_bytes())
    arrays = {name: np.frombuffer(pipe.recv_bytes(), dtype=np.int64) for name in header.pop("arrays")}
    return header, arrays
