"""Share one worker process per runtime inside a command, and start the first while the command imports its own code."""

import functools
from collections.abc import Callable
from typing import ParamSpec

from sdpa_onnx.cli.error_boundary import pin_threads

__all__ = ["with_shared_processes"]

Parameters = ParamSpec("Parameters")


def with_shared_processes(command: Callable[Parameters, int]) -> Callable[Parameters, int]:
    """Share the processes of the runtimes that a command names with --runtime, which wait as long as its --timeout.

    Threads are pinned first, since a process inherits the environment variables that do it. With --outputs, nothing
    runs.
    """

    @functools.wraps(command)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> int:
        threads, named, seconds = options.get("threads", 1), options.get("runtime"), options.get("timeout")
        pin_threads(threads if isinstance(threads, int) else 1)
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list) or not isinstance(seconds, float) or options.get("outputs") is not None:
            return command(*arguments, **options)
        from sdpa_onnx.graph.late_imports import defer_slow_imports
        from sdpa_onnx.workflows.isolate.shared_workers import shared_workers

        defer_slow_imports()
        with shared_workers(names, seconds):
            return command(*arguments, **options)

    return run
