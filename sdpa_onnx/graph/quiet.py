"""Silence onnx_ir's logger: our own errors report what is wrong. Does not touch other loggers."""

import contextlib
import logging
from collections.abc import Iterator

__all__ = ["quiet_ir"]


@contextlib.contextmanager
def quiet_ir() -> Iterator[None]:
    """Silence onnx_ir's logger inside the with block."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
