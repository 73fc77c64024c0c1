"""Which runtimes run in a separate process, and what happens to a crash and to a planted runtime there."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, get_runtime
from sdpa_onnx.runtimes.worker_process import WorkerProcess, WorkerService
from sdpa_onnx.workflows.export.export_target import ExportResult, export_and_prove, export_target
from sdpa_onnx.workflows.isolate.fenced_runtime import FencedRuntime
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, ProcessDiedError, own_process
from sdpa_onnx.workflows.verify.dynamic_axes import prove_axes
from tests.sweep.fakes import Faulty
from tests.workflows.dying_child import READY, START, start_command, start_dying
from tests.workflows.oracle_runtime import OracleRuntime
from tests.workflows.planted_runtime import Planted, fault


@dataclass
class Unknown(OracleRuntime):
    """A runtime that no package registers."""

    name: str = "unknown-engine"


def test_registered_runtime_is_apart() -> None:
    """A child process finds it by its name; without a patience it stays in this process."""
    real = get_runtime("ort-cpu")
    with own_process(real, 5.0) as runtime:
        assert isinstance(runtime, GuardedRuntime)
        assert (runtime.name, runtime.patience_seconds) == ("ort-cpu", 5.0)
    with own_process(real, None) as runtime:
        assert isinstance(runtime, FencedRuntime)
        assert runtime.real is real


@pytest.mark.parametrize("own", [Planted(fault("scale-missing")), Unknown()], ids=["another-of-the-name", "unknown"])
def test_runtime_that_a_child_would_not_find_stays_here(own: Runtime) -> None:
    """A program's own runtime must not be replaced by the registered one of that name."""
    with own_process(own, 5.0) as runtime:
        assert isinstance(runtime, FencedRuntime)
        assert runtime.real is own
        with own_process(runtime, 5.0) as again:
            assert again is runtime


@pytest.mark.slow
def test_cause_of_a_refusal_comes_along() -> None:
    """The runtime's own error, which names the failing node, is the same as in this process."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)
    model = export_target(spec, opset=18, form="decomposed", dtype=Dtype.FLOAT32)
    feeds = {name: np.zeros((1, 2, 3 + number, 4), np.float32) for number, name in enumerate(model.input_names)}
    causes = []
    for patience_seconds in (None, 60.0):
        with (
            own_process(get_runtime("ort-cpu"), patience_seconds) as runtime,
            runtime.load(model, LoadOptions()) as session,
            pytest.raises(SessionError) as caught,
        ):
            session.run(feeds)
        causes.append((str(caught.value), str(caught.value.__cause__)))
    assert causes[0] == causes[1]
    assert "node" in causes[0][1]


def _start_dead(*_: object, python: Path | None, threads: int | None) -> WorkerProcess:
    """A worker that is ready, and ends before it answers."""
    return start_command([sys.executable, "-S", "-c", "raise SystemExit(3)"], first=READY)


def test_export_on_a_runtime_that_dies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The outcome is failed, not wrong; this process continues, and nothing is written."""
    monkeypatch.setattr(START, _start_dead)
    exported = _exported(tmp_path / "x.onnx", 5.0)
    assert (exported.is_right, exported.record.outcome) == (False, Outcome.FAILED)
    assert exported.record.reason == "ort-cpu crashed: its process ended with exit code 3."
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.slow
def test_export_on_a_runtime_that_dies_at_a_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A runtime that dies at some size ends the proof there, and the reason names the size."""
    monkeypatch.setattr(START, start_dying)
    exported = _exported(tmp_path / "x.onnx", 10.0)
    assert exported.record.outcome is Outcome.FAILED
    assert exported.record.reason.startswith(
        "At batch_size 1, q_seq_len 1, kv_seq_len 64: ort-cpu was killed (SIGKILL) from outside"
    )
    assert exported.record.sizes_tried == 0
    assert not (tmp_path / "x.onnx").exists()


def _start_silent() -> WorkerProcess:
    """A worker that is ready, and then sends nothing."""
    return start_command([sys.executable, "-S", "-c", "import time; time.sleep(60)"], first=READY)


def test_axes_on_a_runtime_that_gives_no_answer(monkeypatch: pytest.MonkeyPatch, bare_model: OnnxModel) -> None:
    """The first timeout ends the proof: nothing was tried, so nothing is wrong."""
    started: list[str] = []

    def start(_: WorkerService, name: str, *, python: Path | None, threads: int | None) -> WorkerProcess:
        started.append(name)
        return _start_silent()

    monkeypatch.setattr(START, start)
    with own_process(get_runtime("ort-cpu"), 0.1) as runtime:
        proof = prove_axes(bare_model, runtime, target="t", traced=bare_model.facts.traced)
    assert (proof.outcome, proof.reason) == (Outcome.TIMED_OUT, "ort-cpu gave no answer in 0.1 s.")
    assert (proof.baked, proof.failure, proof.sizes_tried, started) == ((), "", 0, ["ort-cpu"])


def test_wrong_before_it_died(bare_model: OnnxModel) -> None:
    """A fault found before the timeout stays in the reason, followed by the timeout."""
    answers = iter([1.0, 1.0])

    def worse(_: object, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return {name: array + np.float32(next(answers)) for name, array in outputs.items()}
        except StopIteration:
            raise ProcessDiedError("ort-cpu gave no answer in 3 s.") from None

    proof = prove_axes(bare_model, Faulty(fault=worse), target="t")  # type: ignore[arg-type]
    assert proof.outcome is Outcome.DISAGREES
    assert proof.reason.startswith("It is wrong at batch_size ")
    assert ": ort-cpu gave no answer in 3 s." in proof.reason
    assert proof.reason.endswith(" ort-cpu gave no answer in 3 s.")


def _exported(path: Path, patience_seconds: float) -> ExportResult:
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)
    make = partial(export_target, spec, opset=23, form=None, dtype=Dtype.FLOAT32)
    return export_and_prove(make, target="sdpa", path=path, patience_seconds=patience_seconds)
