"""Suppress torch's output during an export. Does not suppress exceptions."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

__all__ = ["quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, log lines below ERROR and printed text while torch traces and translates.

    torch reports missing torchvision, deprecations in its own code and, on a
    failure, the whole traced graph; none of it concerns the user's module.
    """
    previous = logging.root.manager.disable
    logging.disable(max(previous, logging.WARNING))
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
