"""The process that waits for a command: what it prints and returns, however the command ends."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.sweep.process import environment

_COMMAND = """
import os, signal, sys, threading, time
from sdpa_onnx.cli.process import supervision
supervision._GRACE_SECONDS = {grace}
def command():
{body}
supervision.supervised(command)
"""
# A write without a line end, since the reader waits for it.
_READY = 'print("ready", flush=True)'
# Native code that never returns, and so runs no handler of Python: it holds the lock of the interpreter.
_STUCK = f"""
import ctypes
library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
{_READY}
[library.pthread_mutex_lock(mutex) for _ in range(2)]
"""


def _start(body: str, *, grace: float = 0.5) -> "subprocess.Popen[str]":
    code = _COMMAND.format(grace=grace, body=textwrap.indent(textwrap.dedent(body), "    "))
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


ENDINGS = {
    "success": ("raise SystemExit(0)", 0, ""),
    "a disagreement": ("raise SystemExit(1)", 1, ""),
    "misuse": ("raise SystemExit(2)", 2, ""),
    "no exit code": ("pass", 0, ""),
    "an interrupt of its own": ("raise SystemExit(130)", 130, ""),
    "a crash": (
        "os.kill(os.getpid(), signal.SIGSEGV)",
        2,
        "sdpa-onnx: The command crashed: its process ended with SIGSEGV.\n",
    ),
    "an abort": ("os.abort()", 2, "sdpa-onnx: The command crashed: its process ended with SIGABRT.\n"),
    "a kill": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        2,
        "sdpa-onnx: The command crashed: its process ended with SIGKILL.\n",
    ),
}


@pytest.mark.parametrize("kind", ENDINGS)
def test_exit_code(kind: str) -> None:
    """The exit code is that of the command; a crash is one sentence and exit code 2."""
    body, code, text = ENDINGS[kind]
    done = _start(body)
    printed = done.communicate()
    assert (done.returncode, *printed) == (code, "", text)


INTERRUPTED = {
    "it ends by itself": "signal.signal(signal.SIGINT, lambda *_: sys.exit(130))\n{ready}\ntime.sleep(60)",
    "it prints nothing and returns 0": "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n{ready}\ntime.sleep(60)",
    "it ignores the signal": "signal.signal(signal.SIGINT, signal.SIG_IGN)\n{ready}\ntime.sleep(60)",
    "native code that does not return": _STUCK,
    "it cleans up for ever": "signal.signal(signal.SIGINT, lambda *_: time.sleep(60))\n{ready}\ntime.sleep(60)",
}


@pytest.mark.parametrize("kind", INTERRUPTED)
def test_interrupt_ends_every_command(kind: str) -> None:
    """Whatever the command does, the exit code is 130, and no process is left."""
    done = _start(INTERRUPTED[kind].replace("{ready}", _READY))
    assert done.stdout is not None
    assert done.stdout.readline() == "ready\n"
    os.kill(done.pid, signal.SIGINT)
    _, text = done.communicate()
    assert done.returncode == 130
    assert text in ("sdpa-onnx: Interrupted.\n", "")
    with pytest.raises(ProcessLookupError):
        os.killpg(done.pid, 0)


def test_second_interrupt_does_not_wait() -> None:
    """Ctrl-C once more kills a command that still cleans up."""
    done = _start(f"signal.signal(signal.SIGINT, signal.SIG_IGN)\n{_READY}\ntime.sleep(600)", grace=600.0)
    assert done.stdout is not None
    assert done.stdout.readline() == "ready\n"
    os.kill(done.pid, signal.SIGINT)
    time.sleep(0.7)  # longer than two signals of one request are apart
    os.kill(done.pid, signal.SIGINT)
    _, text = done.communicate(timeout=60)
    assert (done.returncode, text) == (130, "sdpa-onnx: Interrupted.\n")


def test_command_dies_with_its_parent() -> None:
    """Nothing goes on when the process that the shell knows is killed."""
    done = _start(f"{_READY}\ntime.sleep(600)")
    assert done.stdout is not None
    assert done.stdout.readline() == "ready\n"
    done.kill()
    assert done.communicate(timeout=60) == ("", "")  # both ends of the pipes are closed
