"""Hold `--timeout` for what a command computes itself, too."""

import functools
from collections.abc import Callable
from typing import ParamSpec

from sdpa_onnx.cli.process.supervision import last_words

__all__ = ["with_limited_steps"]

Parameters = ParamSpec("Parameters")
_HINT = "Use --timeout to give it more time."


def with_limited_steps(command: Callable[Parameters, int]) -> Callable[Parameters, int]:
    """Limit each step of a command that reads a file, which anybody may have written, by its --timeout."""

    @functools.wraps(command)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> int:
        from sdpa_onnx.workflows.isolate.step_limit import limited_steps

        seconds = float(str(options["timeout"]))
        with limited_steps(seconds, hint=_HINT, last_words=last_words()):
            return command(*arguments, **options)

    return run
