"""The real command line in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Far beyond what any of them takes, so that a hang is an error and not a stuck machine.
PATIENCE_SECONDS = 240


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what would colour or widen the output."""
    dropped = {"FORCE_COLOR", "COLUMNS", "NO_COLOR", "TERM"}
    return {name: value for name, value in os.environ.items() if name not in dropped} | more


def sdpa_onnx(*arguments: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "sdpa_onnx", *map(str, arguments)],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """Start a command."""
    return subprocess.Popen(
        [sys.executable, "-m", "sdpa_onnx", *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509 - no thread of this process holds a lock here
    )


def _heed_interrupts() -> None:
    """Undo "ignore SIGINT", which a shell gives to what it starts in the background, and children inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something that a running command does."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert process.poll() is None, f"it ended too early: {process.communicate()}"
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def line_count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
