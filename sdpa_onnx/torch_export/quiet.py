"""torch's talk during an export, kept from the terminal; errors still rise as exceptions."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

__all__ = ["quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back warnings, log lines below ERROR and prints while torch traces and translates.

    torch reports missing torchvision, deprecations of its own code and, on a
    failure, the whole traced graph; none of it is about the user's module.
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
