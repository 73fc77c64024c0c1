"""Progress on stderr: a status line on a terminal, a line every 15 seconds on a pipe.

The remaining time is estimated from each part's expected seconds, scaled by the time spent so far.
"""

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from sdpa_onnx.cli.detail import Detail, requested_detail
from sdpa_onnx.report.text.escape_control import escape_control

__all__ = ["SILENT_SECONDS", "Progress", "StatusLine"]

# Nothing is printed before this; shorter jobs need no progress.
SILENT_SECONDS = 2.0
_LINE_EVERY_SECONDS = 15.0
# The part of the work that is left which takes time even if the rest of it is nearly done.
_LEAST_SHARE = 0.25


class StatusLine:
    """One line that is written over on a terminal, and written again every 15 seconds on a pipe.

    Args:
        stream: Where to write. None = stderr.
        start: When the job began, seconds.
    """

    def __init__(self, stream: TextIO | None, start: float) -> None:
        self._stream = stream or sys.stderr
        self._last = start
        self._width = 0

    @property
    def is_terminal(self) -> bool:
        """Whether the line can be written over."""
        return self._stream.isatty()

    def write(self, text: str, now: float) -> None:
        """Show the text; on a pipe only if the last one is old enough."""
        text = escape_control(" ".join(text.splitlines()))
        if self.is_terminal:
            text = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif now - self._last >= _LINE_EVERY_SECONDS:
            self._last = now
            self._stream.write(text + "\n")
        self._stream.flush()

    def keep(self, text: str) -> None:
        """Print a line that stays on the screen."""
        text = escape_control(text)
        self._stream.write(f"\r{text.ljust(self._width)}\n")
        self._width = 0

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()


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
        self._now = now
        self._start = now()
        self._line = StatusLine(stream, self._start)
        self._slowness = 1.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.clear()

    def restart(self, total: float) -> None:
        """Start again with the expected seconds of the work that is left."""
        self._total, self._done, self._start, self._slowness = max(total, 1e-9), 0.0, self._now(), 1.0

    def note(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._line.keep(text)

    def at(self, step: str) -> None:
        """Show the current step."""
        now = self._now()
        if now - self._start < SILENT_SECONDS or requested_detail() is Detail.QUIET:
            return
        left = self.seconds_left()
        if left is None:  # nothing is done, so nothing is known
            self._line.write(f"{now - self._start:3.0f} s  {step}", now)
            return
        share = min(self._done / self._total, 1.0)
        self._line.write(f"{share:4.0%}  {_in_words(left)}  {step}", now)

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
    return elapsed * max(total - done, 0.0) / done if done > 0.0 else None


def _expected(done: float, total: float, elapsed: float, slowness: float) -> float:
    """Seconds left by an expectation that was corrected. What is at work is not done, but its time has begun."""
    return max(slowness * total - elapsed, _LEAST_SHARE * slowness * (total - done), 0.0)


def _in_words(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"
