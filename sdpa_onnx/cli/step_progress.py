"""Progress of a command whose duration is not known: the elapsed time and the current step, on stderr.

On a terminal a status line that changes every second, on a pipe a line every 15 seconds. No percentage and no time
left: nothing measured them. `progress.py` has both, for jobs of many parts.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from sdpa_onnx.cli.detail import Detail, requested_detail
from sdpa_onnx.cli.progress import SILENT_SECONDS, StatusLine

__all__ = ["StepProgress"]


class StepProgress:
    """Print the current step with the elapsed time; a context manager.

    Args:
        step: The first step.
        stream: Where to write. None = stderr.
        now: Clock, seconds.
        tick_seconds: Time between two changes of the status line; 0 = it changes only with the step.
    """

    def __init__(
        self,
        step: str,
        *,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
        tick_seconds: float = 1.0,
    ) -> None:
        self._step = step
        self._now = now
        self._start = now()
        self._line = StatusLine(stream, self._start)
        self._tick_seconds = tick_seconds
        self._ended = threading.Event()
        self._is_silent = requested_detail() is Detail.QUIET
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._line.is_terminal and self._tick_seconds and not self._is_silent:
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._line.clear()

    def at(self, step: str) -> None:
        """Show the current step, for which the time limit of the command begins again."""
        from sdpa_onnx.workflows.isolate.step_limit import begin_step

        begin_step()
        self._step = step
        self._draw()

    def _tick(self) -> None:
        while not self._ended.wait(self._tick_seconds):
            self._draw()

    def _draw(self) -> None:
        now = self._now()
        if not self._is_silent and now - self._start >= SILENT_SECONDS:
            self._line.write(f"{now - self._start:3.0f} s  {self._step}", now)
