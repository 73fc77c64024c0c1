"""The boundary between a command and the shell: closed streams, prints and exits of user code, signals, memory."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sdpa_onnx.cli.error_boundary import escape_unencodable, print_message, with_exit_codes
from sdpa_onnx.cli.show import print_json
from sdpa_onnx.core.records.records import RuntimeRecord
from tests.cli.invoke import Shell
from tests.sweep.process import environment

_CHATTY = "import sys\nprint('noise')\nfrom mods import Right as Base\nclass Right(Base):\n    pass\n"


def _raising(error: BaseException) -> Callable[[], None]:
    @with_exit_codes
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
    """The message is the same for every library's out-of-memory error."""
    with pytest.raises(SystemExit) as ended:
        _raising(error)()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "sdpa-onnx: Not enough memory. Use smaller sizes.\n"


def test_exit_in_user_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A target that calls sys.exit(0) is a failure."""
    with pytest.raises(SystemExit) as ended:
        _raising(SystemExit(0))()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "sdpa-onnx: The target's code called sys.exit. Remove the call.\n"


def test_no_message_without_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With stderr closed, a message does not go to stdout."""
    monkeypatch.setattr(sys, "stderr", None)
    print_message("hello")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["1", "2"], ids=["stdout", "stderr"])
@pytest.mark.parametrize(
    "form", [pytest.param("", id="words", marks=pytest.mark.slow), pytest.param("--json", id="json")]
)
def test_closed_stream(shell: Shell, stream: str, form: str) -> None:
    """A closed stdout or stderr does not crash the command."""
    line = f"exec {sys.executable} -m sdpa_onnx verify bare.onnx {form} {stream}>&-"
    done = subprocess.run(["/bin/sh", "-c", line], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_prints_of_a_module_go_to_stderr(shell: Shell) -> None:
    """The prints of a user's file go to stderr, so that stdout has only JSON."""
    Path("chatty.py").write_text(_CHATTY)
    ended = shell("export", "chatty.py:Right", "-o", "x.onnx", "--json")
    assert ended.code == 0, ended
    assert json.loads(ended.stdout)[0]["kind"] == "export"
    assert "noise\n" not in ended.stdout


_SIGNALLED = """
import signal
from sdpa_onnx.cli import main as entry
signal.signal(signal.{name}, signal.{before})
entry.app = lambda **_: signal.raise_signal(signal.{name})
entry.main()
"""


def _signalled(name: str, before: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, which gets a signal while the options are parsed."""
    code = _SIGNALLED.format(name=name, before=before)
    return subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signal_ends_like_ctrl_c(name: str) -> None:
    """SIGTERM, SIGHUP, and Ctrl-C while the command line is parsed, cause one message and exit code 130."""
    done = _signalled(name, "SIG_DFL")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sdpa-onnx: Interrupted.\n")


def test_ignored_sighup_stays_ignored() -> None:
    """Under nohup a command continues when its terminal is closed."""
    done = _signalled("SIGHUP", "SIG_IGN")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
def test_numbers_that_are_not_finite(shell: Shell, number: str) -> None:
    """They pass the range checks of the parser, but no option accepts them."""
    message = f"--sigma {number} is not a finite number."
    assert shell.refusal("saturation", "--sigma", number) == message


@pytest.mark.parametrize("command", ["bench", "compare", "inspect"])
def test_name_that_is_not_utf8(shell: Shell, command: str) -> None:
    """Bytes that a record cannot store are rejected before anything runs."""
    name = os.fsdecode(b"caf\xe9.onnx")
    assert shell.refusal(command, name) == (
        "caf\\udce9.onnx is not valid UTF-8, which records and reports require. Rename the file."
    )


def test_name_that_the_locale_lacks(shell: Shell) -> None:
    """A valid UTF-8 name that the locale cannot decode: the message suggests another locale, not another name."""
    assert shell.refusal("inspect", "caf\udcc3\udca9.onnx") == (
        "caf\\udcc3\\udca9.onnx cannot be decoded in this locale, which is not UTF-8. Set PYTHONUTF8=1."
    )


def test_stdout_that_lacks_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters that an encoding lacks are escaped; in JSON with JSON's own escape sequences."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    escape_unencodable()
    sys.stdout.write("1 \u00b5s \u274c\n")
    assert raw.getvalue() == b"1 \\xb5s \\u274c\n"
    raw.seek(0)
    raw.truncate()
    print_json([RuntimeRecord(runtime="\u00b5 \U0001f600")])
    assert json.loads(raw.getvalue())[0]["runtime"] == "\u00b5 \U0001f600"


@pytest.mark.parametrize("target", ["sdpa", "gpt2/self"])
@pytest.mark.parametrize("option", [("--shape", "Q=1x2"), ("--dynamic", "Q=0")], ids=["shape", "dynamic"])
def test_options_that_only_a_class_takes(shell: Shell, target: str, option: tuple[str, str]) -> None:
    """Sample shapes for a target whose inputs are known are rejected, not ignored."""
    assert shell.refusal("export", target, "-o", "x.onnx", *option) == (
        f"{option[0]} applies only to a class; the inputs of '{target}' are known."
    )
