"""Run the command in a child process, so that Ctrl-C ends it even inside code that never returns to Python.

The parent only waits. A command that crashes (a fault in a native library) is one sentence, and exit code 2. Imports
nothing heavy: it runs before anything else is imported.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextvars import ContextVar

from sdpa_onnx.runtimes.worker.orphan import die_with

__all__ = ["last_words", "supervised"]

_MISUSE, _INTERRUPTED = 2, 130  # twins: error_boundary, which imports more
# A command stops its workers and removes its drafts in this time; afterwards it is killed.
_GRACE_SECONDS = 10.0
# Two signals that come together are one request, the next one is another: the user does not want to wait.
_SAME_REQUEST_SECONDS = 0.5
# What faulthandler writes before it ends a process.
_TIMED_OUT = b"\nTimeout ("
# Source: asm-generic/siginfo.h. A terminal signals all processes of its group, this one and the command.
_SENT_BY_KERNEL = 0x80
_MOST_BYTES = 4096

_LAST_WORDS: ContextVar[int | None] = ContextVar("_LAST_WORDS", default=None)


def supervised(command: Callable[[], None]) -> None:
    """Run a command in a child process and exit as it did; where the system lacks what that needs, in this process.

    Args:
        command: Exits by SystemExit.

    Raises:
        SystemExit: With the code of the command; 130 if it was interrupted, 2 if it crashed.
    """
    if sys.platform != "linux":
        command()
        return
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    awaited = [one for one in ends if signal.getsignal(one) is not signal.SIG_IGN]  # as nohup sets it
    words = os.memfd_create("sdpa-onnx") if hasattr(os, "memfd_create") else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*awaited, signal.SIGCHLD])
    parent, child = os.getpid(), os.fork()
    if child:
        raise SystemExit(_exit_code(child, awaited, words))
    die_with(parent)
    _LAST_WORDS.set(words)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        command()
    finally:  # what the interpreter still does prints nothing when it is interrupted
        for one in awaited:
            signal.signal(one, signal.SIG_IGN)


def last_words() -> int | None:
    """Descriptor of a file in which the command says why it is ended in the middle of native code; None = nobody reads.

    One line, and after it what faulthandler writes.
    """
    return _LAST_WORDS.get()


def _exit_code(child: int, awaited: Collection[signal.Signals], words: int | None) -> int:
    """Wait for the command, forward signals to it, and kill it if it does not end after one."""
    requested_at: float | None = None
    while True:
        left = None if requested_at is None else max(requested_at + _GRACE_SECONDS - time.monotonic(), 0.0)
        signals = [*awaited, signal.SIGCHLD]
        info = signal.sigwaitinfo(signals) if left is None else signal.sigtimedwait(signals, left)
        if info is None:
            os.kill(child, signal.SIGKILL)
            requested_at = time.monotonic()
        elif info.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return _reported(code, _why_ended(words), is_interrupted=requested_at is not None)
        elif requested_at is not None and time.monotonic() - requested_at > _SAME_REQUEST_SECONDS:
            os.kill(child, signal.SIGKILL)
        else:
            requested_at = time.monotonic()
            if info.si_code != _SENT_BY_KERNEL:
                os.kill(child, info.si_signo)


def _why_ended(words: int | None) -> str:
    """The line that the command left, if faulthandler ended it; else ""."""
    if words is None:
        return ""
    line, timed_out, _ = os.pread(words, _MOST_BYTES, 0).partition(_TIMED_OUT)
    return line.decode(errors="replace") if timed_out else ""


def _reported(status: int, why: str, *, is_interrupted: bool) -> int:
    """The exit code of the command; what it could not print itself is printed here."""
    if is_interrupted and status != _INTERRUPTED:
        _print("Interrupted.")
        return _INTERRUPTED
    if why:
        _print(why)
        return _MISUSE
    if status >= 0:
        return status
    _print(f"The command crashed: its process ended with {_name(-status)}.")
    return _MISUSE


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _print(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"sdpa-onnx: {text}\n")
