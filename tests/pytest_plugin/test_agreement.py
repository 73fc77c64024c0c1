"""A right model passes, a wrong one fails with its evidence, and nothing passes that was not judged."""

import re
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Outcome, Record, Verdict
from sdpa_onnx.errors import PlanError, RuntimeNotFoundError, RuntimeUnavailableError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.pytest_plugin.agreement import find_disagreement
from sdpa_onnx.workflows.check import available_runtimes as survey
from sdpa_onnx.workflows.verify import verify_file
from tests.sweep.fakes import Absent
from tests.workflows.planted_runtime import Planted, fault

SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)


@pytest.fixture
def model() -> OnnxModel:
    return load_model(build_attention_model(SPEC, opset=23, dtype=Dtype.FLOAT32))


def _plant(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Planted(fault("scale-missing"))
    monkeypatch.setattr(verify_file, "get_runtime", lambda _: wrong)


def _found(model: object, **changes: object) -> str | None:
    asked = {"runtime": "ort-cpu", "sizes": {}, "inputs": None, "seed": 0} | changes
    return find_disagreement(model, **asked)  # type: ignore[arg-type]


def test_a_right_model_agrees(model: OnnxModel) -> None:
    """onnxruntime is right about plain attention."""
    assert _found(model, sizes={"batch_size": 1, "q_seq_len": 3, "kv_seq_len": 5}) is None


def test_a_wrong_model_is_shown_with_its_evidence(
    model: OnnxModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which attention at which sizes, how wrong, what it looks like, and the command that repeats it."""
    _plant(monkeypatch)
    path = tmp_path / "a.onnx"
    model.save(path)
    found = _found(path, sizes={"batch_size": 1, "q_seq_len": 7, "kv_seq_len": 5}, seed=3)
    assert found is not None
    first, second, third, last = found.splitlines()
    assert first == f"{path}: The scale is left out: wrong on ort-cpu."
    assert re.match(r"- \d+ of \d+ judgements disagree, the worst: attention, ", second)
    assert "(float32, 1 x 2 heads x 7 queries, 5 keys, seed 3): " in second
    assert "elements exceed the proven bound" in second
    assert second.endswith("It looks as if the scale is left out.")
    assert third.startswith("  greatest absolute error ")
    sizes = "--size batch_size=1 --size q_seq_len=7 --size kv_seq_len=5"
    assert last == f"Repeat with: sdpa-onnx verify {path} --runtime ort-cpu {sizes} --seed 3"


def test_given_inputs_are_judged(model: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of the caller, right and wrong; the command that repeats it states that they must be saved."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((1, 2, 5, 8), dtype=np.float32) for name in model.input_names}
    assert _found(model, inputs=inputs) is None
    _plant(monkeypatch)
    found = _found(model, inputs=inputs)
    assert found is not None
    assert found.startswith("the model: The scale is left out: wrong on ort-cpu.\n- 1 of 1 judgements disagree, ")
    assert found.endswith(
        "Repeat with: sdpa-onnx verify FILE --runtime ort-cpu --inputs FILE.npz --seed 0, once the model is saved as "
        "FILE"
    )


def test_a_missing_input_is_one_sentence(model: OnnxModel) -> None:
    """The first that lacks is named."""
    with pytest.raises(PlanError) as caught:
        _found(model, inputs={"Q": np.zeros((1, 2, 5, 8), dtype=np.float32)})
    assert str(caught.value) == "The inputs have no 'K'; they have Q. Name the arrays like the inputs of the model."


def test_nothing_judged_is_no_agreement(model: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that does not support the model, and a check without any record."""
    refused: list[Record] = [AgreementRecord(outcome=Outcome.UNSUPPORTED, reason="No kernel.")]
    for records, why in ((refused, " No kernel."), ([], ""), ([ExportRecord()], "")):
        monkeypatch.setattr(verify_file, "verify_file", lambda *_, records=records, **__: iter(records))
        assert _found(model) == f"No output of the model was judged on ort-cpu, so agreement is not shown.{why}"


def test_failures_and_fixed_axes_are_findings(model: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that failed, an axis that is fixed: each reason once, disagreements first."""
    right = AgreementRecord(verdict=Verdict.OK)
    failed = AgreementRecord(outcome=Outcome.FAILED, case="c", reason="It crashed.")
    fixed = ExportRecord(outcome=Outcome.DISAGREES, reason="Axis 'q_seq_len' is fixed at 16.")
    monkeypatch.setattr(verify_file, "verify_file", lambda *_, **__: iter([right, *[failed] * 6, fixed]))
    found = _found(model)
    assert found is not None
    assert found.splitlines() == [
        "the model: Axis 'q_seq_len' is fixed at 16: wrong.",
        "the model: It crashed: failed.",
        "Repeat with: sdpa-onnx verify FILE --runtime ort-cpu --seed 0, once the model is saved as FILE",
    ]
    monkeypatch.setattr(verify_file, "verify_file", lambda *_, **__: iter([failed]))
    found = _found(model)
    assert found is not None
    assert found.startswith("the model: It crashed: failed.\n")


def test_a_runtime_that_is_not_there(model: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown and missing are different errors, which the fixture treats differently."""
    with pytest.raises(RuntimeNotFoundError):
        _found(model, runtime="ort-cpuu")
    monkeypatch.setattr(survey, "get_runtime", lambda _: Absent())
    with pytest.raises(RuntimeUnavailableError):
        _found(model)
