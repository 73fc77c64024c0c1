"""Sends errors of our own classes from a worker to its parent process. Used in our own environment only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sdpa_onnx.errors import SdpaOnnxError

from .pipe import ReportedError

__all__ = ["reported_errors"]


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Send the message of our own errors unchanged; the cause names the node that failed."""
    try:
        yield
    except SdpaOnnxError as error:
        raise ReportedError(str(error), cause=str(error.__cause__ or "")) from error
