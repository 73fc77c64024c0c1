"""Ctrl-C inside a command: raised where Python can unwind, remembered where something swallowed it.

An extension module that is interrupted while it initialises turns the KeyboardInterrupt into an ImportError, which
would read as a missing package. What Python never returns from is ended by `supervision`.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from importlib.machinery import ExtensionFileLoader
from types import FrameType

__all__ = ["interruptible", "was_interrupted"]

# The same request arrives twice when a signal is sent to the whole group of processes.
_SAME_REQUEST_SECONDS = 0.5
_AGAIN_SECONDS = 0.05
# Functions of Python's import system that run the code of an extension module.
_LOADING = frozenset({"create_module", "exec_module"})


class _Interruption:
    """The handler of the signals, and whether one of them came."""

    def __init__(self) -> None:
        self.requested_at: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _loads_extension(frame):
            self._later(number)
            return
        now = time.monotonic()
        if self.requested_at is not None and now - self.requested_at < _SAME_REQUEST_SECONDS:
            return
        self.requested_at = now
        raise KeyboardInterrupt

    def unraisable(self, found: "sys.UnraisableHookArgs") -> None:
        """Interrupt again where Python only reports the exception: it came in a destructor or a callback."""
        if not issubclass(found.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(found)
            return
        if found.exc_type is not KeyboardInterrupt:  # that of a time limit, which comes again by itself
            return
        self.requested_at = None
        self._later(signal.SIGINT)

    def _later(self, number: int) -> None:
        # To the main thread, so that what it waits for ends; `_thread.interrupt_main` would not wake it.
        timer = threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (threading.main_thread().ident, number))
        timer.daemon = True
        timer.start()


_CURRENT: ContextVar[_Interruption | None] = ContextVar("_CURRENT", default=None)


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed in the command that runs, even if something took the exception for another."""
    current = _CURRENT.get()
    return current is not None and current.requested_at is not None


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C: one message, no partial file, exit code 130."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interruption = _Interruption()
    token = _CURRENT.set(interruption)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    hook, sys.unraisablehook = sys.unraisablehook, interruption.unraisable
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # under nohup the command must continue
            signal.signal(number, interruption)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        sys.unraisablehook = hook
        _CURRENT.reset(token)


def _loads_extension(frame: FrameType | None) -> bool:
    """Whether an extension module is being initialised."""
    while frame is not None:
        if frame.f_code.co_name in _LOADING and isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False
