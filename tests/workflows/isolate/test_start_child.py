"""Children start whatever lies in the current folder, and one that does not is no finding about a runtime."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.errors import RuntimeUnavailableError
from sdpa_onnx.runtimes.base import LoadOptions
from sdpa_onnx.runtimes.process_end import ending
from sdpa_onnx.workflows.conformance import conformance, runner
from sdpa_onnx.workflows.export.export_target import export_target
from sdpa_onnx.workflows.isolate import isolated_runtime as guarded
from sdpa_onnx.workflows.isolate import start_child
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError, guarded_runtime
from sdpa_onnx.workflows.isolate.start_child import child_command
from tests.workflows.dying_child import start_dying

_BARE = export_target(
    AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4), opset=23, form=None, dtype=Dtype.FLOAT32
)
_ROW = {"only": ["value-width"], "opsets": [23], "dtypes": ["float32"]}


def _feeds(queries: int) -> dict[str, np.ndarray]:
    return {name: np.ones((1, 2, queries, 4), np.float32) for name in _BARE.input_names}


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder with files of a user that have the names of what we import."""
    for name in ("onnx", "profile", "token", "runpy", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)


def test_names_in_the_current_folder(trap: None) -> None:
    """Neither kind of child imports them."""
    with guarded_runtime("ort-cpu", patience_seconds=60.0) as runtime, runtime.load(_BARE, LoadOptions()) as session:
        assert session.run(_feeds(3))["Y"].shape == (1, 2, 3, 4)
    (record,) = conformance("ort-cpu", **_ROW)
    assert record.verdict is Conformity.RIGHT


def test_paths_of_the_parent_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the parent's paths have is found, and hides nothing of Python."""
    for name in ("only_here", "token"):
        (tmp_path / f"{name}.py").write_text("import sys, token\nprint(sys.argv[1:], hasattr(token, 'NAME'))\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = subprocess.run(child_command("only_here", "one", "two"), capture_output=True, text=True, check=True)
    assert done.stdout == "['one', 'two'] True\n"


def _broken(_: str) -> list[str]:
    return [sys.executable, "-S", "-c", "raise ImportError('no such thing.')"]


def test_child_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told with the last thing that it said, and is no crash of the runtime."""
    for module in (guarded, runner):
        monkeypatch.setattr(module, "child_command", lambda name, *_: _broken(name))
    why = "did not start, it ended with exit code 1: ImportError: no such thing."
    hint = "This is no fault of the runtime; see whether `sdpa-onnx runtimes` works."
    with guarded_runtime("ort-cpu") as runtime, pytest.raises(RuntimeUnavailableError) as caught:
        runtime.load(_BARE, LoadOptions())
    assert str(caught.value) == f"The process for ort-cpu {why} {hint}"
    with pytest.raises(RuntimeUnavailableError) as caught:
        list(conformance("ort-cpu", **_ROW))
    assert str(caught.value) == f"The process for the rows {why} {hint}"


def test_child_that_hangs_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, and told."""
    for module in (guarded, runner, start_child):
        monkeypatch.setattr(module, "STARTING_SECONDS", 0.3)
    for module in (guarded, runner):
        monkeypatch.setattr(
            module, "child_command", lambda *_: [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        )
    before = set(psutil.Process().children())
    with (
        guarded_runtime("ort-cpu") as runtime,
        pytest.raises(RuntimeUnavailableError, match=r"said nothing for 0\.3 s"),
    ):
        runtime.load(_BARE, LoadOptions())
    with pytest.raises(RuntimeUnavailableError, match=r"said nothing for 0\.3 s"):
        list(conformance("ort-cpu", **_ROW))
    assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize(("times", "verdict"), [(1, Conformity.RIGHT), (2, Conformity.CRASHED)])
def test_row_whose_child_is_killed(monkeypatch: pytest.MonkeyPatch, times: int, verdict: Conformity) -> None:
    """Once, it is asked again; twice, the row has crashed, and the signal is named."""
    start = runner._Child._start
    left = [times]

    def start_and_kill(child: runner._Child) -> "subprocess.Popen[bytes]":
        process = start(child)
        if left[0]:
            left[0] -= 1
            process.kill()
        return process

    monkeypatch.setattr(runner._Child, "_start", start_and_kill)
    (record,) = conformance("ort-cpu", **_ROW)
    assert record.verdict is verdict
    assert record.reason == ("" if verdict is Conformity.RIGHT else "Its process was ended by SIGKILL.")


def test_session_whose_child_is_killed() -> None:
    """Once, it is loaded and run again in a new child."""
    with guarded_runtime("ort-cpu", patience_seconds=60.0) as runtime, runtime.load(_BARE, LoadOptions()) as session:
        child = runtime._child
        assert child is not None
        child.process.kill()
        child.process.wait()
        assert session.run(_feeds(3))["Y"].shape == (1, 2, 3, 4)
        assert runtime.children == 2


def test_session_that_kills_every_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the second death it is told, with the signal."""
    monkeypatch.setattr(guarded, "_start", start_dying)
    with guarded_runtime("ort-cpu", patience_seconds=60.0) as runtime, runtime.load(_BARE, LoadOptions()) as session:
        with pytest.raises(ProcessDiedError) as caught:
            session.run(_feeds(1))
        assert str(caught.value) == "ort-cpu crashed: its process ended with SIGKILL."
        assert runtime.children == 3


def test_ending() -> None:
    """Signals by name, also those that have none."""
    assert [ending(code) for code in (3, -11, -100)] == ["exit code 3", "SIGSEGV", "signal 100"]
