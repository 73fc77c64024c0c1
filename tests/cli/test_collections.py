"""The command line looks for garbage rarely, and leaves the settings of its process as they were."""

import gc
import subprocess
import sys

import pytest

from sdpa_onnx.cli import main as command_line


def test_garbage_is_collected_rarely_during_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collections look through all objects of the packages that were imported, so there are few."""
    before, seen = gc.get_threshold(), list[tuple[int, int, int]]()

    def app(**_: object) -> int:
        seen.append(gc.get_threshold())
        return 0

    monkeypatch.setattr(command_line, "app", app)
    monkeypatch.setattr(sys, "argv", ["sdpa-onnx"])
    with pytest.raises(SystemExit):
        command_line.main()
    ((young, middle, old),) = seen
    assert young > before[0]
    assert (middle, old) >= before[1:]
    assert gc.get_threshold() == before


def test_nothing_is_collected_when_the_process_ends() -> None:
    """Every object is frozen before the last collection, which would take seconds after torch was imported."""
    program = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # runs after those that are registered later
from sdpa_onnx.cli.main import main
sys.argv = ["sdpa-onnx", "--version"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "True", done
