"""How much a command prints: `--quiet` only the verdict, `--verbose` every row, else at most about a screen.

Known while a command runs, so that what it prints need not be passed through every function.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from enum import StrEnum

from sdpa_onnx.errors import PlanError

__all__ = ["Detail", "chosen_detail", "requested_detail"]


class Detail(StrEnum):
    """How much is printed."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


_DETAIL: ContextVar[Detail] = ContextVar("_DETAIL", default=Detail.NORMAL)


def requested_detail() -> Detail:
    """Return the detail of the command that runs."""
    return _DETAIL.get()


@contextlib.contextmanager
def chosen_detail(options: Mapping[str, object]) -> Iterator[None]:
    """Run a command with the detail of its options.

    Raises:
        PlanError: If both options are given.
    """
    if options.get("quiet") and options.get("verbose"):
        raise PlanError("--quiet and --verbose exclude each other.", hint="Leave out one of them.")
    chosen = Detail.QUIET if options.get("quiet") else Detail.VERBOSE if options.get("verbose") else Detail.NORMAL
    token = _DETAIL.set(chosen)
    try:
        yield
    finally:
        _DETAIL.reset(token)
