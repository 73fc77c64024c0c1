"""What stands between a command and the shell: closed streams, foreign prints and exits, stops, memory."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sdpa_onnx.cli import main as entry
from sdpa_onnx.cli.guard import guarded, tell
from tests.cli.invoke import Shell
from tests.sweep.process import environment

_CHATTY = "import sys\nprint('noise')\nfrom mods import Right as Base\nclass Right(Base):\n    pass\n"


def _raising(error: BaseException) -> Callable[[], None]:
    @guarded
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"),
        ValueError("array is too big; `arr.size * arr.dtype.itemsize` is larger than the maximum possible size."),
        ValueError("Maximum allowed dimension exceeded"),
        OverflowError("Python int too large to convert to C long"),
    ],
    ids=str,
)
def test_sizes_too_large(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """However a library says that memory is short, the sentence is the same."""
    with pytest.raises(SystemExit) as ended:
        _raising(error)()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "sdpa-onnx: There is not enough memory. Use smaller sizes.\n"


def test_foreign_exit(capsys: pytest.CaptureFixture[str]) -> None:
    """A target that calls sys.exit(0) is no success."""
    with pytest.raises(SystemExit) as ended:
        _raising(SystemExit(0))()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "sdpa-onnx: The code of the target called sys.exit.\n"


def test_nothing_is_told_without_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With stderr closed, what is for the person does not land in the results."""
    monkeypatch.setattr(sys, "stderr", None)
    tell("hello")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("stream", ["1", "2"], ids=["stdout", "stderr"])
@pytest.mark.parametrize(
    "form", [pytest.param("", id="words", marks=pytest.mark.slow), pytest.param("--json", id="json")]
)
def test_closed_stream(shell: Shell, stream: str, form: str) -> None:
    """A closed stdout or stderr is no crash."""
    line = f"exec {sys.executable} -m sdpa_onnx verify bare.onnx {form} {stream}>&-"
    done = subprocess.run(["/bin/sh", "-c", line], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "Traceback" not in done.stdout + done.stderr


def test_prints_of_a_module_are_no_json(shell: Shell) -> None:
    """What a user's file prints goes to stderr, so that stdout is JSON alone."""
    Path("chatty.py").write_text(_CHATTY)
    ended = shell("export", "chatty.py:Right", "-o", "x.onnx", "--json")
    assert ended.code == 0, ended
    assert json.loads(ended.stdout)[0]["kind"] == "export"
    assert "noise\n" not in ended.stdout


def test_sigterm_ends_like_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGTERM, and Ctrl-C while the command line is read, give one sentence and exit code 130."""
    before = signal.getsignal(signal.SIGTERM)

    def stopped(**_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(entry, "app", stopped)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "sdpa-onnx: Interrupted.\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("target", ["sdpa", "gpt2/self"])
@pytest.mark.parametrize("option", [("--shape", "Q=1x2"), ("--dynamic", "Q=0")], ids=["shape", "dynamic"])
def test_options_that_only_a_class_takes(shell: Shell, target: str, option: tuple[str, str]) -> None:
    """Sample shapes beside a target with inputs of its own are refused, not passed over."""
    assert shell.refusal("export", target, "-o", "x.onnx", *option) == (
        f"{option[0]} does not go with '{target}', whose inputs are known; it is for a class."
    )
