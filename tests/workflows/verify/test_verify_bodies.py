"""Attention inside If, Loop and Scan is judged in its body, and the records say under which condition."""

import numpy as np
import pytest

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, PlantedRecord
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.verify.inspect_axes import try_axes
from sdpa_onnx.workflows.verify.inspect_file import inspect_model
from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file
from tests.graph.body_models import BODY_MODELS, PLACES, body_proto

_SAYS = {
    "if-never-taken": ["The attention in then_branch of If/y is judged as if its condition held."],
    "attention-in-both-branches": [
        "The attention in else_branch of If/y is judged as if its condition did not hold.",
        "The attention in then_branch of If/y is judged as if its condition held.",
    ],
    "loop-with-a-cache": [
        "The attention in body of Loop/k_last is judged in the first turn, with drawn values for what the loop carries."
    ],
    "scan-over-time": [
        "The attention in body of Scan/last is judged in one step, with drawn states and slices.",
    ],
}


def _records(name: str, check: CheckOptions | None = None, extras: VerifyExtras | None = None) -> list[object]:
    model = load_model(body_proto(name))
    return list(verify_file(model, ["ort-cpu"], check or CheckOptions(sizes={}), target=name, extras=extras))


def _judged(records: list[object]) -> list[AgreementRecord]:
    return [record for record in records if isinstance(record, AgreementRecord)]


@pytest.mark.parametrize("name", _SAYS)
def test_the_condition_is_stated(name: str) -> None:
    """Each record of a body names it, and how it was run."""
    records = _judged(_records(name, extras=VerifyExtras(axes=False)))
    assert {record.outcome for record in records} == {Outcome.OK}
    said = {text for record in records for text in record.warnings if "is judged" in text}
    assert sorted(said) == _SAYS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", BODY_MODELS)
def test_every_body_is_judged(name: str) -> None:
    """One site for each attention, and all agree."""
    records = _judged(_records(name))
    assert {record.outcome for record in records} == {Outcome.OK}
    inside = {record.site for record in records if "/" in record.site and "Softmax/p" in record.site}
    assert len(inside) == len(PLACES[name])


@pytest.mark.slow
def test_planted_faults_are_found_in_a_body() -> None:
    """`--prove` plants each fault in the body opened."""
    records = _records("if-in-a-loop", extras=VerifyExtras(axes=False, prove=True))
    planted = [record for record in records if isinstance(record, PlantedRecord)]
    assert planted
    assert {record.outcome for record in planted} == {Outcome.OK}


def test_given_arrays_that_a_branch_can_use() -> None:
    """A branch has no inputs of its own."""
    feeds = {name: np.ones((1, 2, 3, 8), np.float32) * 0.1 for name in "qkv"} | {"c": np.array(False)}
    (record,) = _judged(_records("if-on-an-input", CheckOptions(sizes={}, inputs=feeds)))
    assert record.outcome is Outcome.OK


def test_given_arrays_that_a_loop_cannot_use() -> None:
    """The inputs of a turn are not among them: the record fails, and says why."""
    feeds = {name: np.ones((1, 2, 3, 8), np.float32) for name in "qkv"}
    (record,) = _judged(_records("loop-with-a-cache", CheckOptions(sizes={}, inputs=feeds)))
    assert record.outcome is Outcome.FAILED
    assert record.reason == (
        "The attention in body of Loop/k_last could not be judged: The given arrays have none for its own inputs "
        "kc, vc."
    )


def test_a_size_of_no_axis() -> None:
    """It is refused, as in any file; that of a body's own axis is not."""
    with pytest.raises(PlanError, match="The model has no axis 'Z'"):
        _records("loop-with-a-cache", CheckOptions(sizes={"Z": 3}))
    records = _judged(_records("loop-with-a-cache", CheckOptions(sizes={"P0": 3}), VerifyExtras(axes=False)))
    assert {record.outcome for record in records} == {Outcome.OK}


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("if-on-an-input", "It runs (its attentions are inside If, Loop or Scan: verify judges them) at "),
        (
            "one-outside-one-inside",
            "Every attention outside of If, Loop and Scan is right (verify judges those inside too) at ",
        ),
    ],
)
def test_what_inspect_says(name: str, start: str) -> None:
    """It judges the main graph only, and says so."""
    model = load_model(body_proto(name))
    trial = try_axes(with_lifted_sites(model).model, inspect_model(model, target="m"), "ort-cpu", target="m")
    assert trial.says.startswith(start)
