"""Workers start with any files in the current folder, and a failed start is no finding about a runtime."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.errors import RuntimeUnavailableError
from sdpa_onnx.runtimes import workers
from sdpa_onnx.runtimes.base import LoadOptions
from sdpa_onnx.runtimes.worker_process import WorkerProcess, WorkerService
from sdpa_onnx.workflows.conformance import conformance
from sdpa_onnx.workflows.export.export_target import export_target
from sdpa_onnx.workflows.isolate.isolated_function import CallFailure, CallResult, IsolatedFunction
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError, guarded_runtime
from tests.workflows.dying_child import START, kill, start_command, start_dying

_BARE = export_target(
    AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4), opset=23, form=None, dtype=Dtype.FLOAT32
)
_ROW = {"only": ["value-width"], "opsets": [23], "dtypes": ["float32"]}


def _feeds(queries: int) -> dict[str, np.ndarray]:
    return {name: np.ones((1, 2, queries, 4), np.float32) for name in _BARE.input_names}


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder with files of a user that have the names of modules that we import."""
    for name in ("onnx", "profile", "token", "runpy", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)


def test_names_in_the_current_folder(trap: None) -> None:
    """No worker of ours imports them."""
    with guarded_runtime("ort-cpu", patience_seconds=60.0) as runtime, runtime.load(_BARE, LoadOptions()) as session:
        assert session.run(_feeds(3))["Y"].shape == (1, 2, 3, 4)
    (record,) = conformance("ort-cpu", **_ROW)
    assert record.verdict is Conformity.RIGHT


_FUNCTIONS = """
import ctypes, os, time, token

def has_name(argument):
    return b"%d" % hasattr(token, "NAME") + argument

def raises(argument):
    raise ValueError("of no use.")

def lacks_memory(argument):
    raise MemoryError

def dies(argument):
    with open(argument, "a") as file:
        file.write("x")
    ctypes.string_at(0)

def hangs(argument):
    time.sleep(60)

def prints(argument):
    print("noise", flush=True)
    os.write(1, b"noise")
    os.write(2, b"noise")
    return argument
"""


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[bytes], bytes]]:
    """Functions of a module that is only on the parent's path, with a file that could hide a module of Python."""
    (tmp_path / "only_here.py").write_text(_FUNCTIONS)
    (tmp_path / "token.py").write_text("raise SystemExit(7)\n")
    monkeypatch.syspath_prepend(tmp_path)

    def named(name: str) -> Callable[[bytes], bytes]:
        def stand_in(argument: bytes) -> bytes:
            raise AssertionError(argument)

        stand_in.__module__, stand_in.__qualname__ = "only_here", name
        return stand_in

    return named


def test_paths_of_the_parent_are_passed_on(function: Callable[[str], Callable[[bytes], bytes]]) -> None:
    """A module that is only on the parent's path is found, and hides no module of Python."""
    with IsolatedFunction(function("has_name"), who="It", attempts=1) as calls:
        assert calls.call(b'"\xc3\xa4"', patience_seconds=60.0) == CallResult(b'1"\xc3\xa4"')


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "It crashed: ValueError: of no use."),
        ("lacks_memory", "It ran out of memory."),
        ("dies", "It crashed: its process ended with SIGSEGV."),
        ("hangs", "It gave no answer in 0.5 s."),
    ],
)
def test_function_without_a_result(
    function: Callable[[str], Callable[[bytes], bytes]], tmp_path: Path, name: str, reason: str
) -> None:
    """The reason is one sentence, and no process is left; only a process that ended is tried again."""
    before = set(psutil.Process().children())
    log = tmp_path / "log"
    with IsolatedFunction(function(name), who="It", attempts=2) as calls:
        failed = calls.call(str(log).encode(), patience_seconds=0.5, first_seconds=0.5 if name == "hangs" else 60.0)
        assert failed == CallFailure(reason, is_timeout=name == "hangs")
        assert set(psutil.Process().children()) <= before
    assert not log.exists() or log.read_text() == "xx"


def test_prints_of_a_function(
    function: Callable[[str], Callable[[bytes], bytes]], capfd: pytest.CaptureFixture[str]
) -> None:
    """They are neither in the answer nor in our output."""
    with IsolatedFunction(function("prints"), who="It", attempts=1) as calls:
        assert calls.call(b"{}", patience_seconds=60.0) == CallResult(b"{}")
    assert capfd.readouterr() == ("", "")


def test_function_that_cannot_be_imported(function: Callable[[str], Callable[[bytes], bytes]]) -> None:
    """That is no finding about the runtime that it should run."""
    with (
        IsolatedFunction(function("nothing"), who="It", attempts=2) as calls,
        pytest.raises(RuntimeUnavailableError) as caught,
    ):
        calls.call(b"", patience_seconds=60.0)
    assert str(caught.value) == (
        "The Python that runs this cannot import what it needs: AttributeError: module 'only_here' has no attribute "
        "'nothing'. Install what is missing there, or name another Python."
    )


def _broken(*_: object, python: Path | None, threads: int | None) -> WorkerProcess:
    return start_command([sys.executable, "-S", "-c", "raise ImportError('no such thing.')"])


def test_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the last line that it printed, and it is no crash of the runtime."""
    monkeypatch.setattr(START, _broken)
    why = "did not start: it ended with exit code 1: ImportError: no such thing."
    hint = "This is no fault of the runtime; see whether `sdpa-onnx runtimes` works."
    with guarded_runtime("ort-cpu") as runtime, pytest.raises(RuntimeUnavailableError) as caught:
        runtime.load(_BARE, LoadOptions())
    assert str(caught.value) == f"The process for ort-cpu {why} {hint}"
    with pytest.raises(RuntimeUnavailableError) as caught:
        list(conformance("ort-cpu", **_ROW))
    assert str(caught.value) == f"The process for ort-cpu {why} {hint}"


def _sleeping(*_: object, python: Path | None, threads: int | None) -> WorkerProcess:
    return start_command([sys.executable, "-S", "-c", "import time; time.sleep(600)"])


def test_worker_that_hangs_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped, and reported."""
    monkeypatch.setattr(workers, "_STARTING_SECONDS", 0.3)
    monkeypatch.setattr(START, _sleeping)
    before = set(psutil.Process().children())
    with (
        guarded_runtime("ort-cpu", patience_seconds=0.1) as runtime,
        pytest.raises(RuntimeUnavailableError, match=r"sent nothing for 0\.3 s"),
    ):
        runtime.load(_BARE, LoadOptions())
    with pytest.raises(RuntimeUnavailableError, match=r"sent nothing for 0\.3 s"):
        list(conformance("ort-cpu", **_ROW))
    assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize(("times", "verdict"), [(1, Conformity.RIGHT), (2, Conformity.CRASHED)])
def test_row_whose_worker_is_killed(monkeypatch: pytest.MonkeyPatch, times: int, verdict: Conformity) -> None:
    """Once, the request is repeated; twice, the row has crashed, and the signal is named."""
    left, killed = [times], set[int]()
    wait_ready = workers.Worker.wait_ready

    def wait_and_kill(worker: workers.Worker) -> None:
        wait_ready(worker)
        if left[0] and worker.pid not in killed:
            left[0] -= 1
            killed.add(worker.pid)
            kill(worker)

    monkeypatch.setattr(workers.Worker, "wait_ready", wait_and_kill)
    (record,) = conformance("ort-cpu", **_ROW)
    assert record.verdict is verdict
    reason = "ort-cpu was killed (SIGKILL) from outside, perhaps for memory."
    assert record.reason == ("" if verdict is Conformity.RIGHT else reason)


def test_session_whose_worker_is_killed() -> None:
    """Once, the model is loaded and run again in a new worker."""
    with guarded_runtime("ort-cpu", patience_seconds=60.0) as runtime, runtime.load(_BARE, LoadOptions()) as session:
        assert runtime._worker is not None
        kill(runtime._worker)
        assert session.run(_feeds(3))["Y"].shape == (1, 2, 3, 4)
        assert runtime.workers == 2


def test_session_that_kills_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the second death it is reported, with the signal."""
    monkeypatch.setattr(START, start_dying)
    with guarded_runtime("ort-cpu", patience_seconds=60.0) as runtime, runtime.load(_BARE, LoadOptions()) as session:
        with pytest.raises(ProcessDiedError) as caught:
            session.run(_feeds(1))
        assert str(caught.value) == "ort-cpu was killed (SIGKILL) from outside, perhaps for memory."
        assert runtime.workers == 3


def test_every_service_has_its_module() -> None:
    """The name of a service is that of a file of the worker package."""
    folder = Path(workers.__file__).with_name("worker")
    assert all((folder / f"{service}.py").exists() for service in WorkerService)
