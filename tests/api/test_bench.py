"""`bench` in Python times every combination, and refuses what cannot be timed before it starts a process."""

import time

import numpy as np
import pytest

import sdpa_onnx as so
from sdpa_onnx.core.records.records import BUDGET_REASON, Outcome
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.bench import bench_files

_SPEC = so.AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True)
_SIZES = {"q_seq_len": 16, "kv_seq_len": 16}


def _model() -> OnnxModel:
    return so.load(build_attention_model(_SPEC, opset=23, dtype=so.Dtype.FLOAT32))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"models": {}}, "There is no model to time. Give at least one."),
        ({"forms": ["fused"]}, "There is no form 'fused'. Known: as-is, "),
        ({"inputs": {}, "sizes": _SIZES}, "inputs already fixes the sizes. Leave out at and sizes."),
        ({"runtimes": ["onnx-reference"]}, "Runtime 'onnx-reference' is for agreement only. Time another one."),
        ({"baseline": "b"}, "There is no arm 'b' to be the baseline. Arms: ort-cpu."),
        ({"sizes": {"length": 3}}, "no axis"),
    ],
)
def test_what_cannot_be_timed(options: dict[str, object], text: str) -> None:
    """One sentence."""
    with pytest.raises(PlanError) as refused:
        so.bench(**{"models": _model(), **options})  # type: ignore[arg-type]
    assert text in str(refused.value)


@pytest.mark.slow
@pytest.mark.alone
def test_models_on_runtimes() -> None:
    """Arms of several runtimes, torch as the baseline; given inputs; the names of the caller."""
    models = {"own": _model(), "plain": so.convert(_model(), "decomposed", runtime=None)}
    records = so.bench(models, runtimes=["ort-cpu", "torch"], sizes=_SIZES, seconds=0.2)
    assert {record.arm for record in records} == {"ort-cpu own", "ort-cpu plain", "torch"}
    assert {record.baseline for record in records} == {"torch"}
    shape = (1, 2, 16, 8)
    inputs = {name: np.ones(shape, np.float32) for name in ("Q", "K", "V")}
    (alone,) = so.bench({"own": _model()}, inputs=inputs, seconds=0.2)
    assert (alone.arm, alone.sizes.q_seq_len) == ("own", 16)
    assert alone.median_seconds is not None


@pytest.mark.slow
@pytest.mark.alone
def test_a_time_limit_interrupts_what_looks_at_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the command line a timer ends it, and what was not timed is skipped; a busy machine may not get to it."""

    def judge(*_: object, **__: object) -> None:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(bench_files, "_time_one", judge)
    records = so.bench({"own": _model()}, sizes=_SIZES, budget=10.0)
    assert {(one.outcome, one.reason) for one in records} <= {(Outcome.SKIPPED, BUDGET_REASON)}
