"""Pipes, colours and a reader that closes the pipe."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.invoke import Shell
from tests.sweep.process import environment

_COMMANDS = {
    "inspect": ["inspect", "bare.onnx"],
    "inspect-json": ["inspect", "bare.onnx", "--json"],
    "runtimes": ["runtimes"],
    "verify": ["verify", "bare.onnx"],
    "verify-json": ["verify", "bare.onnx", "--json"],
}


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "sdpa_onnx", *arguments]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(words, id=name, marks=() if name == "verify" else pytest.mark.slow)
        for name, words in _COMMANDS.items()
    ],
)
def test_closed_pipe(shell: Shell, arguments: list[str]) -> None:
    """A reader that closes the pipe at once, like `| head`, is no error: no traceback, no message, exit code 0."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        _command(arguments), stdout=write, stderr=subprocess.PIPE, env=environment(), text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [pytest.param([], id="words", marks=pytest.mark.slow), pytest.param(["--json"], id="json")]
)
def test_closed_pipe_does_not_hide_a_disagreement(shell: Shell, form: list[str]) -> None:
    """A wrong file still causes exit code 1 when nobody reads the output."""
    import onnx

    model = onnx.load("bare.onnx")
    node = model.graph.node[0]
    node.input[1], node.input[2] = node.input[2], node.input[1]
    onnx.save(model, "wrong.onnx")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        _command(["verify", "wrong.onnx", *form]), stdout=write, stderr=subprocess.PIPE, env=environment(), check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_no_colours_in_a_pipe(shell: Shell) -> None:
    """Tables and progress in a pipe contain no escape codes."""
    ended = shell("verify", "bare.onnx")
    assert ended.code == 0
    assert "\x1b" not in ended.stdout + ended.stderr


def _on_a_terminal(arguments: list[str], folder: Path, **more: str) -> tuple[int, bytes]:
    """Run a command with stdout and stderr on a pseudo-terminal; return its exit code and output."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        _command(arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=folder,
        env=environment(TERM="xterm-256color", **more),
    )
    os.close(slave)
    written = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed, which Linux reports as an error
            break
        if not part:
            break
        written += part
    os.close(master)
    return process.wait(), written


@pytest.mark.slow
def test_no_color_is_honoured_on_a_terminal(shell: Shell) -> None:
    """NO_COLOR turns off the colours that a terminal has otherwise."""
    code, plain = _on_a_terminal(["verify", "bare.onnx"], shell.folder, NO_COLOR="1")
    assert code == 0
    assert b"\x1b[3" not in plain  # no foreground colour
    code, coloured = _on_a_terminal(["verify", "bare.onnx"], shell.folder)
    assert code == 0
    assert b"\x1b[" in coloured


def test_error_on_a_terminal_is_one_plain_line(shell: Shell) -> None:
    """An error message has no frame and no colour, whatever the terminal supports."""
    code, written = _on_a_terminal(["inspect", "no.onnx"], shell.folder)
    assert (code, written) == (2, b"sdpa-onnx: Cannot read no.onnx: there is no such file.\r\n")
