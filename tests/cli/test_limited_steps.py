"""The time limit on what a command computes itself: a hang in Python, one in native code, one that swallows errors."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweep.process import environment

_PROGRAM = """
import ctypes
import sdpa_onnx.graph.model as model
from sdpa_onnx.__main__ import main
from sdpa_onnx.workflows.isolate import step_limit
step_limit._LEAST_SECONDS, step_limit._AGAIN_SECONDS, step_limit._GRACE_SECONDS = 0.2, 0.2, 1.0
def hang(path):
{body}
model.load_model = hang
main()
"""
_BODIES = {
    "Python code": """
    while True:
        pass
""",
    "code that swallows every error once": """
    for _ in range(2):
        try:
            while True:
                pass
        except BaseException:
            pass
""",
    "native code that never returns": """
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    [library.pthread_mutex_lock(mutex) for _ in range(2)]
""",
}
_SENTENCE = (
    "sdpa-onnx: A step of the command itself did not end within 0.5 s: it read the file, inferred shapes, rewrote the "
    "graph or judged numbers. Use --timeout to give it more time.\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process waits for the command")
@pytest.mark.parametrize("kind", _BODIES)
def test_a_hang_of_the_command_itself(kind: str, tmp_path: Path) -> None:
    """It is one sentence and exit code 2, whatever hangs."""
    program = _PROGRAM.format(body=_BODIES[kind].strip("\n"))
    command = [sys.executable, "-c", program, "inspect", str(tmp_path / "m.onnx"), "--timeout", "0.5"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, _SENTENCE)
