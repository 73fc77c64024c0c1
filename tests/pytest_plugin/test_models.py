"""Two models for a test: the arguments of `bench`, and the result from its records."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import Outcome, RatioVerdict, TimingRecord
from sdpa_onnx.errors import PlanError, RuntimeNotFoundError, SessionError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.pytest_plugin.models import time_models
from sdpa_onnx.pytest_plugin.result import TimedPair
from sdpa_onnx.workflows.timing import comparison as bench_module
from sdpa_onnx.workflows.timing.comparison import TimedComparison

pytestmark = pytest.mark.alone

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)
_BASE = TimingRecord(arm="base", baseline="base")
_HEAD = TimingRecord(arm="head", baseline="base", ratio=1.5, verdict=RatioVerdict.SLOWER)
_FAILED = TimingRecord(arm="head", outcome=Outcome.FAILED, reason="It died.")
_REASON = "Undecidable on this machine now: 4 threads, 1 idle core."
_SKIPPED = TimingRecord(arm="base", outcome=Outcome.SKIPPED, reason=_REASON)


@pytest.fixture(scope="module")
def model() -> OnnxModel:
    return load_model(build_attention_model(_SPEC, opset=23, dtype=Dtype.FLOAT32))


class _Bench:
    """Returns these records, and stores its arguments."""

    def __init__(self, *records: TimingRecord) -> None:
        self.records = {record.arm: record for record in records}
        self.asked: Mapping[str, object] = {}

    def __call__(self, arms: object, check: object, **asked: object) -> TimedComparison:
        self.asked = {"arms": arms, "check": check, **asked}
        times = np.arange(1.0, 25.0).reshape(2, 3, 4)
        sample = ArmSamples(wall_seconds=times, cpu_seconds=times)
        return TimedComparison(
            records=self.records, samples=dict.fromkeys(self.records, sample), seconds=1.0, launch_seconds=()
        )


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Bench]:
    bench = _Bench(_BASE, _HEAD)
    monkeypatch.setattr(bench_module, "bench", bench)
    return bench


def _timed(base: object, head: object, **changes: object) -> TimedPair | str:
    asked = {"runtime": "ort-cpu", "sizes": {}, "threads": 1, "seconds": 20.0, "margin": 0.1}
    return time_models(base, head, **{**asked, **changes})  # type: ignore[arg-type]


def test_both_arms_are_timed_as_bench_does(planted: _Bench, model: OnnxModel) -> None:
    """The base is the baseline; seconds, margin, threads and sizes arrive; rounds are visits of all launches."""
    pair = _timed(model, model, threads=2, sizes={"q_seq_len": 7})
    assert isinstance(pair, TimedPair)
    assert (pair.baseline.record, pair.candidate.record) == (_BASE, _HEAD)
    assert pair.candidate.rounds == [2.5, 6.5, 10.5, 14.5, 18.5, 22.5]
    assert pair.candidate.iterations == 4
    asked = planted.asked
    assert asked["baseline"] == "base"
    assert [arm.name for arm in asked["arms"]] == ["base", "head"]  # type: ignore[attr-defined]
    assert asked["check"].threads == 2  # type: ignore[attr-defined]
    assert asked["check"].sizes == {"batch_size": 1, "q_seq_len": 7, "kv_seq_len": 7}  # type: ignore[attr-defined]
    assert (asked["plan"].budget_seconds, asked["plan"].margin) == (20.0, 0.1)  # type: ignore[attr-defined]


def test_a_busy_machine_is_a_reason(planted: _Bench, model: OnnxModel) -> None:
    """No verdict is possible now: no error, no figure."""
    planted.records = {"base": _SKIPPED, "head": _HEAD}
    assert _timed(model, model) == _REASON


def test_an_arm_that_fails_is_an_error(planted: _Bench, model: OnnxModel) -> None:
    """Named by its side, with the reason."""
    planted.records = {"base": _BASE, "head": _FAILED}
    with pytest.raises(SessionError) as caught:
        _timed(model, model)
    assert str(caught.value) == "The head model does not run on ort-cpu: It died."


def test_models_of_other_inputs_are_refused(planted: _Bench, model: OnnxModel) -> None:
    """Before anything is timed; so is a runtime that does not exist."""
    other = load_model(
        build_attention_model(
            AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, has_past=True), opset=23, dtype=Dtype.FLOAT32
        )
    )
    with pytest.raises(PlanError) as caught:
        _timed(model, other)
    assert str(caught.value) == (
        "The base model has inputs Q, K, V, the head model Q, K, V, past_key, past_value. "
        "Only models with the same inputs can be compared."
    )
    with pytest.raises(RuntimeNotFoundError):
        _timed(model, model, runtime="none")
    assert planted.asked == {}
