"""A runtime that crashes, hangs, exits or prints affects its own row only."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sdpa_onnx.core.records.records import Conformity, Outcome
from sdpa_onnx.errors import PlanError, RuntimeNotFoundError, RuntimeUnavailableError
from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes, survey_runtimes
from sdpa_onnx.workflows.conformance import conformance, runner

# Only the row at opset 24 misbehaves, as the environment variable says; 23 and 25 behave.
_MODULE = """
import ctypes, os, sys, time

from tests.workflows.oracle_runtime import OracleRuntime


class Misbehaving(OracleRuntime):
    def __init__(self):
        super().__init__(name="misbehaving")

    def supports(self, model):
        misdeed = os.environ["MISDEED"] if model.opset == 24 else ""
        if misdeed == "segfault":
            ctypes.string_at(0)
        if misdeed == "hang":
            time.sleep(600)
        if misdeed.endswith("-once") and not os.path.exists(os.environ["MARK"]):
            open(os.environ["MARK"], "w").close()
            if misdeed == "hang-once":
                time.sleep(600)
            os.kill(os.getpid(), 9)
        if misdeed == "exit":
            os._exit(3)
        if misdeed == "raise":
            raise ZeroDivisionError("boom")
        if misdeed == "gone":
            from sdpa_onnx.errors import RuntimeUnavailableError
            raise RuntimeUnavailableError("the device is lost")
        if misdeed == "print":
            print('{"kind": "conformance"}', flush=True)
            os.write(1, b"noise without a newline")
        return super().supports(model)


class Absent(Misbehaving):
    def available(self):
        from sdpa_onnx.runtimes.base import Unsupported

        return Unsupported("misbehaving is missing: pip install it")


class Raising(Misbehaving):
    def available(self):
        raise OSError("no driver.")
"""


@pytest.fixture
def misbehaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that this process and its children find by entry point, like any plug-in."""
    (tmp_path / "misbehaving.py").write_text(_MODULE)
    info = tmp_path / "misbehaving-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: misbehaving\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sdpa_onnx.runtimes]\nmisbehaving = misbehaving:Misbehaving\nabsent-runtime = misbehaving:Absent\n"
        "raising-runtime = misbehaving:Raising\n"
    )
    root = Path(__file__).parents[3]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(root)]))


def _children() -> set[psutil.Process]:
    """Child processes; other tests may have left some, such as the resource tracker of multiprocessing."""
    return set(psutil.Process().children(recursive=True))


@pytest.mark.parametrize(
    ("misdeed", "reason"),
    [
        ("segfault", "misbehaving crashed: its process ended with SIGSEGV."),
        pytest.param("exit", "misbehaving crashed: its process ended with exit code 3.", marks=pytest.mark.slow),
        pytest.param(
            "raise",
            "The runtime raised an error that is not a refusal: ZeroDivisionError: boom.",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "gone",
            "The runtime raised an error that is not a refusal: RuntimeUnavailableError: the device is lost.",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_crash_is_one_row(misbehaving: None, monkeypatch: pytest.MonkeyPatch, misdeed: str, reason: str) -> None:
    """The rows before and after it are right, and the crashed row has the reason."""
    monkeypatch.setenv("MISDEED", misdeed)
    progress: list[tuple[int, int]] = []
    records = list(
        conformance(
            "misbehaving",
            only=["value-width"],
            dtypes=["float32"],
            on_row=lambda done, total: progress.append((done, total)),
        )
    )
    assert [(record.opset, record.verdict) for record in records] == [
        (23, Conformity.RIGHT),
        (24, Conformity.CRASHED),
        (25, Conformity.RIGHT),
    ]
    crashed = records[1]
    assert (crashed.outcome, crashed.reason, crashed.feature) == (Outcome.FAILED, reason, "value-width")
    assert crashed.repeat == (
        "sdpa-onnx conformance --runtime misbehaving --only value-width --opset 24 --dtype float32"
    )
    assert progress == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
def test_a_hang_ends_at_the_timeout(misbehaving: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that exceeds the timeout is ended together with its process, repeated with more time, and counted apart."""
    monkeypatch.setenv("MISDEED", "hang")
    monkeypatch.setattr(runner, "_LOADING_SECONDS", 15.0)
    before = _children()
    records = list(conformance("misbehaving", only=["value-width"], dtypes=["float32"], timeout_seconds=1.0))
    assert [record.verdict for record in records] == [Conformity.RIGHT, Conformity.NO_ANSWER, Conformity.RIGHT]
    assert records[1].reason == "misbehaving gave no answer in 18 s, and before that not within 1 s."
    assert records[1].repeat.endswith(" --opset 24 --dtype float32 --timeout 1")
    assert [record.outcome is Outcome.TIMED_OUT for record in records[:2]] == [False, True]
    assert _children() <= before


@pytest.mark.parametrize(
    ("misdeed", "text"),
    [
        pytest.param("hang-once", "misbehaving gave no answer in 2 s", marks=pytest.mark.slow),
        ("kill-once", "misbehaving was killed (SIGKILL)"),
    ],
)
def test_a_row_that_was_repeated_is_recorded(
    misbehaving: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, misdeed: str, text: str
) -> None:
    """A busy machine, or another program that ended the process, is no finding; the record has what happened."""
    monkeypatch.setenv("MISDEED", misdeed)
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    records = list(conformance("misbehaving", only=["value-width"], dtypes=["float32"], timeout_seconds=2.0))
    assert [record.verdict for record in records] == [Conformity.RIGHT] * 3
    warnings = [[one for one in record.warnings if one.startswith("Repeated once: ")] for record in records]
    assert [len(found) for found in warnings] == [0, 1, 0]
    assert text in warnings[1][0]


def test_output_printed_by_a_runtime_is_no_record(misbehaving: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text on standard output, from Python or from native code, does not reach the records."""
    monkeypatch.setenv("MISDEED", "print")
    records = list(conformance("misbehaving", only=["value-width"], dtypes=["float32"]))
    assert [record.verdict for record in records] == [Conformity.RIGHT] * 3


def test_a_caller_that_stops_leaves_no_child(misbehaving: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the iterator early ends the child process."""
    monkeypatch.setenv("MISDEED", "")
    before = _children()
    rows = conformance("misbehaving", only=["value-width"], dtypes=["float32"])
    next(rows)
    assert _children() - before
    rows.close()
    assert _children() <= before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child that hangs outlives a killed parent")
def test_a_killed_parent_leaves_no_child(misbehaving: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that hangs ends with its parent."""
    monkeypatch.setenv("MISDEED", "hang")
    monkeypatch.setattr(runner, "_LOADING_SECONDS", 15.0)
    code = (
        "from sdpa_onnx.workflows.conformance import conformance\n"
        "for record in conformance('misbehaving', only=['value-width'], dtypes=['float32'], timeout_seconds=600):\n"
        "    print(record.opset, flush=True)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"23\n"
    children = psutil.Process(parent.pid).children(recursive=True)
    assert children
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _gone, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


@pytest.mark.slow
def test_in_this_process_the_records_are_the_same(misbehaving: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are the same with and without isolation."""
    monkeypatch.setenv("MISDEED", "")
    choice = {"only": ["softcap-mask"], "opsets": [24], "dtypes": ["float32"]}
    inside, outside = (list(conformance("misbehaving", isolate=isolate, **choice)) for isolate in (False, True))
    assert inside == outside
    assert len(inside) == 1


def test_an_unavailable_runtime_is_an_error_before_any_row(misbehaving: None) -> None:
    """No process is started for an unavailable or unknown runtime."""
    with pytest.raises(RuntimeUnavailableError) as caught:
        next(conformance("absent-runtime"))
    assert str(caught.value) == ("Runtime 'absent-runtime' is not available: misbehaving is missing: pip install it.")
    with pytest.raises(RuntimeUnavailableError) as caught:
        next(conformance("raising-runtime"))
    assert str(caught.value) == "Runtime 'raising-runtime' is not available: it raised OSError: no driver."
    with pytest.raises(RuntimeNotFoundError):
        next(conformance("nowhere"))


def test_a_runtime_that_raises_is_surveyed_as_unavailable(misbehaving: None) -> None:
    """`--runtime all` takes the others."""
    found = {record.runtime: record for record in survey_runtimes()}
    assert found["raising-runtime"].outcome is Outcome.SKIPPED
    assert found["raising-runtime"].reason == "it raised OSError: no driver"
    assert "raising-runtime" not in pick_runtimes(["all"])
    assert "misbehaving" in pick_runtimes(["all"])


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"only": ["softcp"]}, "There is no feature 'softcp'. Did you mean 'softcap'?"),
        ({"operators": ["Atention"]}, "There is no operator 'Atention'. Did you mean 'Attention'?"),
        ({"dtypes": ["float31"]}, "There is no dtype 'float31'. Did you mean 'float32'?"),
        (
            {"only": ["window-left"], "opsets": [23]},
            "No feature matches this selection. Leave out --opset or --operator.",
        ),
    ],
)
def test_an_unknown_name_suggests_the_nearest(choice: dict[str, list[str]], text: str) -> None:
    """A misspelt name is an error before anything runs."""
    with pytest.raises(PlanError) as caught:
        next(conformance("ort-cpu", **choice))  # type: ignore[arg-type]
    assert str(caught.value) == text
