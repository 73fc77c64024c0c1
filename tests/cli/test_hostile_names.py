"""Names that would control the terminal: of files, nodes, axes, suites, and in the text of a module's error."""

import io
import json
import re
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.cli.progress import StatusLine
from tests.cli.invoke import Shell

HOSTILE = {
    "escape": "a\x1b[2Jb",
    "bell": "a\x07b",
    "carriage return": "a\rb",
    "right to left": "a\u202eb",
    "isolate": "a\u2067b",
    "zero width": "a\u200bb",
    "byte order mark": "a\ufeffb",
    "C1 introducer": "a\x9b2Jb",
    "backspace": "a\x08b",
    "delete": "a\x7fb",
}
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


def _model(name: str) -> onnx.ModelProto:
    """An attention whose node and axes have that name."""
    info = [helper.make_tensor_value_info(one, TensorProto.FLOAT, ["b", 2, name, 8]) for one in ("Q", "K", "V", "Y")]
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"], name=name)
    graph = helper.make_graph([node], "g", info[:3], info[3:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


@pytest.mark.parametrize("kind", HOSTILE)
def test_names_of_nodes_and_axes(shell: Shell, kind: str) -> None:
    """`inspect` prints none of them raw, and JSON has the names as they are."""
    onnx.save(_model(HOSTILE[kind]), "m.onnx")
    ended = shell("inspect", "m.onnx", "--no-run", "--verbose")
    assert ended.code == 0
    assert not _RAW.search(ended.stdout + ended.stderr)
    assert json.loads(shell("inspect", "m.onnx", "--no-run", "--json").stdout)[0]["node"] == HOSTILE[kind]


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_names_of_files(shell: Shell, command: str, kind: str) -> None:
    """An error names the file without what controls the terminal."""
    name = f"{HOSTILE[kind]}.onnx"
    Path(name).write_text("no model", encoding="utf-8")
    assert not _RAW.search(shell.refusal(command, name))


@pytest.mark.parametrize("kind", HOSTILE)
def test_names_of_suites(shell: Shell, kind: str) -> None:
    """So does the error about a suite that is not there."""
    assert not _RAW.search(shell.refusal("run", HOSTILE[kind]))


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("debug", [False, True])
def test_error_of_a_module(shell: Shell, kind: str, *, debug: bool) -> None:
    """The text of an exception of the user's module is printed without them, in the traceback too."""
    Path("hostile.py").write_text(f"raise ValueError({HOSTILE[kind]!r})\n", encoding="utf-8")
    ended = shell("export", "hostile.py:Model", "-o", "x.onnx", *(["--debug"] if debug else []))
    assert ended.code == 2
    assert "cannot be imported" in ended.stderr
    assert not _RAW.search(ended.stderr)


@pytest.mark.parametrize("kind", HOSTILE)
def test_progress(kind: str) -> None:
    """A line of progress has none either, and is one line."""
    stream = io.StringIO()
    StatusLine(stream, 0.0).write(f"{HOSTILE[kind]}\nsecond", 1000.0)
    assert not _RAW.search(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
