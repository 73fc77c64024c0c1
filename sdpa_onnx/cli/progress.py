"""Progress on stderr: a status line on a terminal, a line every 15 seconds on a pipe.

The remaining time is estimated from each part's expected seconds, scaled by the time spent so far.
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from sdpa_onnx.cli.detail import Detail, requested_detail

__all__ = ["Progress"]

# Nothing is printed before this; shorter jobs need no progress.
_QUIET_SECONDS = 2.0
_LINE_EVERY_SECONDS = 15.0
# The part of the work that is left which takes time even if the rest of it is nearly done.
_LEAST_SHARE = 0.25


class Progress:
    """Print the progress of a job of several parts; a context manager.

    Args:
        total: Expected seconds of all parts together.
        stream: Where to write. None = stderr.
        now: Clock, seconds.
        trusted_seconds: How many seconds of observation the expectation is worth: the time left is known from the
            start, and is corrected as parts are done. 0 = only what was observed counts.
    """

    def __init__(
        self,
        total: float,
        *,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
        trusted_seconds: float = 0.0,
    ) -> None:
        self._trusted = trusted_seconds
        self._total = max(total, 1e-9)
        self._done = 0.0
        self._stream = stream or sys.stderr
        self._now = now
        self._start = now()
        self._last = self._start
        self._width = 0
        self._slowness = 1.0

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
        self._total, self._done, self._start, self._slowness = max(total, 1e-9), 0.0, self._now(), 1.0

    def note(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._stream.write(f"\r{text.ljust(self._width)}\n")
        self._width = 0

    def at(self, step: str) -> None:
        """Show the current step."""
        now = self._now()
        if now - self._start < _QUIET_SECONDS or requested_detail() is Detail.QUIET:
            return
        share = min(self._done / self._total, 1.0)
        text = f"{share:4.0%}  {_in_words(self.seconds_left())}  {step}"
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
        self._slowness = (self._now() - self._start + self._trusted) / max(self._done + self._trusted, 1e-9)

    def seconds_left(self) -> float | None:
        """Seconds until the end, or None while nothing is known."""
        elapsed = self._now() - self._start
        if not self._trusted:
            return _observed(self._done, self._total, elapsed)
        return _expected(self._done, self._total, elapsed, self._slowness)


def _observed(done: float, total: float, elapsed: float) -> float | None:
    """Seconds left if all goes on as it went so far; None before anything is done."""
    return elapsed * (total - done) / done if done > 0.0 else None


def _expected(done: float, total: float, elapsed: float, slowness: float) -> float:
    """Seconds left by an expectation that was corrected. What is at work is not done, but its time has begun."""
    return max(slowness * total - elapsed, _LEAST_SHARE * slowness * (total - done), 0.0)


def _in_words(seconds: float | None) -> str:
    if seconds is None:
        return "time left unknown"
    return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns
