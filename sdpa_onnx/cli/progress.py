"""Progress on stderr: a status line on a terminal, a line every 15 seconds on a pipe.

The remaining time is estimated from each part's expected seconds, scaled by the time spent so far.
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

__all__ = ["Progress"]

# Nothing is printed before this; shorter jobs need no progress.
_QUIET_SECONDS = 2.0
_LINE_EVERY_SECONDS = 15.0


class Progress:
    """Print the progress of a job of several parts; a context manager.

    Args:
        total: Expected seconds of all parts together.
        stream: Where to write. None = stderr.
        now: Clock, seconds.
    """

    def __init__(
        self, total: float, *, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = max(total, 1e-9)
        self._done = 0.0
        self._stream = stream or sys.stderr
        self._now = now
        self._start = now()
        self._last = self._start
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()

    def restart(self, total: float) -> None:
        """Start again with the expected seconds of the work that is left."""
        self._total, self._done, self._start = max(total, 1e-9), 0.0, self._now()

    def note(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._stream.write(f"\r{text.ljust(self._width)}\n")
        self._width = 0

    def at(self, step: str) -> None:
        """Show the current step."""
        now = self._now()
        if now - self._start < _QUIET_SECONDS:
            return
        share = min(self._done / self._total, 1.0)
        text = f"{share:4.0%}  {_time_left(self._done, self._total, now - self._start)}  {step}"
        if self._stream.isatty():
            text = text[: _columns() - 1]
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif now - self._last >= _LINE_EVERY_SECONDS:
            self._last = now
            self._stream.write(text + "\n")
        self._stream.flush()

    def advance(self, seconds: float) -> None:
        """Count a part as done.

        Args:
            seconds: Expected seconds of that part.
        """
        self._done += seconds


def _time_left(done: float, total: float, elapsed: float) -> str:
    if done <= 0.0:
        return "time left unknown"
    seconds = elapsed * (total - done) / done
    return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {max(seconds, 0):.0f} s left"


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns
