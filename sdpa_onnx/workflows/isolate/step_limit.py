"""The time limit on what a command computes in its own process: reading, shape inference, rewriting, judging.

A runtime in a process of its own has a limit for each answer. What lies between two answers is a step here, and the
same limit holds for it. Python code is interrupted and unwinds; native code that does not return is ended with the
process, by a thread of faulthandler that does not need the interpreter.
"""

import contextlib
import faulthandler
import os
import signal
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType

from sdpa_onnx.errors import NoAnswerError

__all__ = ["begin_step", "limited_steps", "no_step"]

# A loaded machine imports what a command needs, and reads any small file, in this time.
_LEAST_SECONDS = 60.0
# Python code that unwinds stops workers and removes drafts in this time, and is then interrupted again.
_AGAIN_SECONDS = 5.0
# After it, the process ends.
_GRACE_SECONDS = 10.0


class _StepIsOverError(KeyboardInterrupt):
    """Unwinds as Ctrl-C does: no code that handles errors may take it for one."""


@dataclass(slots=True, kw_only=True)
class _Limit:
    """The timers of a command.

    Args:
        seconds: Of one step.
        last_words: A file that holds why the process ended, if native code does not return; None = it goes on.
    """

    seconds: float
    last_words: int | None
    is_over: bool = field(default=False, init=False)

    @property
    def sentence(self) -> str:
        return (
            f"A step of the command itself did not end within {self.seconds:g} s: it read the file, inferred shapes, "
            "rewrote the graph or judged numbers."
        )

    def begin(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.seconds, _AGAIN_SECONDS)
        if self.last_words is not None:
            faulthandler.dump_traceback_later(self.seconds + _GRACE_SECONDS, exit=True, file=self.last_words)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if self.last_words is not None:
            faulthandler.cancel_dump_traceback_later()

    def over(self, number: int, frame: FrameType | None) -> None:
        self.is_over = True
        raise _StepIsOverError


_CURRENT: ContextVar[_Limit | None] = ContextVar("_CURRENT", default=None)


@contextlib.contextmanager
def limited_steps(seconds: float, *, hint: str, last_words: int | None = None) -> Iterator[None]:
    """Limit each step of the block, for the main thread of a system that has timers.

    Args:
        seconds: Of one step; it has at least a minute.
        hint: What the user can do.
        last_words: Descriptor of a file. The reason is written into it, and a traceback after it when the process
            is ended because native code does not return; None = that is not done.

    Raises:
        NoAnswerError: If a step did not end in time.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer") or seconds > threading.TIMEOUT_MAX:
        yield
        return
    limit = _Limit(seconds=max(seconds, _LEAST_SECONDS), last_words=last_words)
    if last_words is not None:
        os.write(last_words, f"{limit.sentence} {hint}\n".encode())
    before = signal.signal(signal.SIGALRM, limit.over)
    token = _CURRENT.set(limit)
    try:
        limit.begin()
        yield
    except BaseException as error:
        limit.stop()
        if limit.is_over:  # native code may have turned the interrupt into another error
            raise NoAnswerError(limit.sentence, hint=hint) from error
        raise
    finally:
        limit.stop()
        _CURRENT.reset(token)
        signal.signal(signal.SIGALRM, before)


def begin_step() -> None:
    """Begin the next step of `limited_steps`; nothing outside of it."""
    limit = _CURRENT.get()
    if limit is not None and not limit.is_over:
        limit.begin()


@contextlib.contextmanager
def no_step() -> Iterator[None]:
    """Wait in this block for what has a limit of its own; the next step begins after it."""
    limit = _CURRENT.get()
    if limit is None or limit.is_over:
        yield
        return
    limit.stop()
    try:
        yield
    finally:
        begin_step()
