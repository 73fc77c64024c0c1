"""What is called .onnx and is no model is refused in one sentence, without waiting and without reading it."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.invoke import Shell
from tests.graph.models import bare

_RUN = Path(__file__).parents[1] / "compat" / "run"
# Nothing of it is on the disk.
_SPARSE_BYTES = 6 * 2**30
_IRREGULAR = "m.onnx is not a regular file. Give the name of an .onnx file."
_NO_MODEL = "m.onnx is not an ONNX model. It may be cut short, or of another kind."


def _sparse(path: Path, beginning: bytes) -> None:
    with path.open("wb") as file:
        file.write(beginning)
        file.truncate(_SPARSE_BYTES)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)


# doc_string of the model, field 6, with 3 GB of zeros.
_LONG_TEXT = bytes([6 << 3 | 2, *b"\x80\x80\x80\x80\x0c"])
ENTRIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (Path.mkdir, "m.onnx is a directory. Give the name of an .onnx file."),
    "pipe": (os.mkfifo, _IRREGULAR),
    "socket": (_socket, _IRREGULAR),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), _IRREGULAR),
    "empty device": (lambda path: path.symlink_to("/dev/null"), _IRREGULAR),
    "file of the kernel": (
        lambda path: path.symlink_to("/proc/self/mem"),
        "m.onnx is empty. Give an .onnx file.",
    ),
    "link to nothing": (lambda path: path.symlink_to("gone"), "Cannot read m.onnx: there is no such file."),
    "link to itself": (
        lambda path: path.symlink_to(path.name),
        "Cannot read m.onnx: Too many levels of symbolic links.",
    ),
    "empty": (Path.touch, "m.onnx is empty. Give an .onnx file."),
    "sparse": (lambda path: _sparse(path, b""), _NO_MODEL),
    "sparse behind a model": (lambda path: _sparse(path, bare().to_bytes()), _NO_MODEL),
    "sparse text": (lambda path: _sparse(path, _LONG_TEXT), _NO_MODEL),
}
COMMANDS = {
    "inspect": ("inspect", "m.onnx"),
    "verify": ("verify", "m.onnx"),
    "convert": ("convert", "m.onnx", "-o", "out.onnx", "--form", "blocked"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ENTRIES)
def test_what_is_no_file_of_a_model(shell: Shell, kind: str, command: str) -> None:
    """The sentence says what it is; no other file is written."""
    make, sentence = ENTRIES[kind]
    make(Path("m.onnx"))
    assert _refusal(shell, command) == sentence


def _refusal(shell: Shell, command: str) -> str:
    before = sorted(Path().iterdir())
    ended = shell(*COMMANDS[command])
    assert (ended.code, ended.stdout, sorted(Path().iterdir())) == (2, "", before)
    return ended.stderr.removeprefix("sdpa-onnx: ").removesuffix("\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user and return")
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_a_file_that_may_not_be_read(shell: Shell, closed: str) -> None:
    """The reason of the system."""
    path = Path("m.onnx").absolute()
    path.write_bytes(bare().to_bytes())
    (path if closed == "file" else shell.folder).chmod(0)
    if closed == "file":
        shell.folder.chmod(0o755)
    os.seteuid(65534)
    try:
        ended = shell("inspect", "m.onnx")
    finally:
        os.seteuid(0)
    assert (ended.code, ended.stderr) == (2, "sdpa-onnx: Cannot read m.onnx: Permission denied.\n")


def test_a_name_with_a_line_break(shell: Shell) -> None:
    """A model of such a name is read; the name does not break the line of an error."""
    Path("two\nlines.onnx").write_bytes(bare().to_bytes())
    assert shell("inspect", "two\nlines.onnx", "--no-run").code == 0
    Path("two\nlines.onnx").write_bytes(b"no model")
    assert "\n" not in shell.refusal("inspect", "two\nlines.onnx")


@pytest.mark.parametrize("name", ["run.json", "records.jsonl"])
@pytest.mark.parametrize("command", [("report", "run"), ("compare", "run", "run")])
def test_a_run_folder_with_a_pipe(shell: Shell, command: tuple[str, ...], name: str) -> None:
    """Named, without waiting for somebody to write into it."""
    folder = Path("run")
    shutil.copytree(_RUN, folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    ended = shell(*command)
    assert ended.code == 2
    assert ended.stderr == f"sdpa-onnx: {folder / name} is not a regular file. A run folder has files only.\n"
