"""Progress of a command of a few steps: the elapsed time, the current step and, where it is known, the time left.

On stderr: on a terminal a status line that changes every second, on a pipe a line every 15 seconds. The time left is
shown only to a command that reports which share of its work is done: it is what the work so far took, continued.
`progress.py` has a percentage too, for jobs of many parts.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from sdpa_onnx.cli.detail import Detail, requested_detail
from sdpa_onnx.cli.progress import SILENT_SECONDS, StatusLine

__all__ = ["LADDER_RUNS", "StepProgress"]

# What judging an export at one size and every spread takes after the proof of its axes, in runs of that proof: see
# tests/cli/test_step_progress.py. A form with blocks is judged at long sizes too, which take much longer.
LADDER_RUNS = 1.5

# Less is not worth a number.
_LEAST_LEFT_SECONDS = 1.0


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
        # The time and share of the first report, and when the work ends at the pace of the last.
        self._first: tuple[float, float] | None = None
        self._end: float | None = None
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

    def sizes(self, step: str, *, after: float | None) -> Callable[[int, int], None]:
        """Make a function that shows how many runs at other sizes are done, and notes their share.

        Args:
            step: What they are for.
            after: The work behind them, in such runs; None = not known, or the runs differ too much.
        """

        def reach(done: int, of: int) -> None:
            if after is not None:
                self.done(done / (of + after))
            self.at(f"{step}: {done} of {of} sizes")

        return reach

    def done(self, share: float) -> None:
        """Note which share of the work is done; the first note only starts the clock."""
        now = self._now()
        if self._first is None:
            self._first = (now, share)
            return
        began, before = self._first
        if share > before:
            self._end = now + (now - began) * (1.0 - share) / (share - before)

    def _tick(self) -> None:
        while not self._ended.wait(self._tick_seconds):
            self._draw()

    def _draw(self) -> None:
        now = self._now()
        if not self._is_silent and now - self._start >= SILENT_SECONDS:
            left = 0.0 if self._end is None else self._end - now
            words = f", about {left:.0f} s left" if left >= _LEAST_LEFT_SECONDS else ""
            self._line.write(f"{now - self._start:3.0f} s  {self._step}{words}", now)
