"""How child processes are started, and what is said of one that did not start or that died.

A child imports by the parent's paths, but never from the folder that it happens to
stand in before anything else: a file named onnx.py there is not ours. Asks a child nothing.
"""

import os
import sys
from typing import IO

from sdpa_onnx.errors import RuntimeUnavailableError
from sdpa_onnx.runtimes.process_end import ending, last_line

__all__ = ["STARTING_SECONDS", "child_command", "not_started", "quieten"]

# A loaded machine imports onnx and numpy in this time.
STARTING_SECONDS = 120.0


def child_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module in a new interpreter.

    The parent's paths come behind the child's own, so that nothing in them hides a package or
    a module of Python; what only the parent's paths have is found all the same.
    """
    paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - "" is the current folder
    code = (
        "import runpy, sys\n"
        f"sys.path += [path for path in {paths!r} if path not in sys.path]\n"
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
    )
    return [sys.executable, "-P", "-c", code, *arguments]


def quieten() -> None:
    """In the child, once it has started: drop what runtimes print, of which there is no end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def not_started(what: str, status: int | None, errors: IO[bytes] | None) -> RuntimeUnavailableError:
    """What is raised of a child that ended before it said that it is there: that is no finding about a runtime.

    Args:
        what: The child, for people.
        status: How it ended; None if it was ended for saying nothing.
        errors: Its standard error.
    """
    why = f"said nothing for {STARTING_SECONDS:g} s" if status is None else f"ended with {ending(status)}"
    line = last_line(errors) if errors is not None else ""
    said = f": {line}" if line else ""
    return RuntimeUnavailableError(
        f"{what} did not start, it {why}{said}.",
        hint="This is no fault of the runtime; see whether `sdpa-onnx runtimes` works.",
    )
