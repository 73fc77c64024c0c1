"""What a model is fed when it is judged: the ladder, the probes behind it, or given arrays."""

import numpy as np
import onnx
import pytest
from onnx import helper

from sdpa_onnx.core.attention.inputs import LADDER
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.records.records import AgreementRecord, Verdict
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import InputStep, draw_feeds, ladder, probe_steps
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.core.by_name import find_fault
from tests.graph.models import SPECS, bare, inner_attention, load_model, model_of
from tests.workflows.faulty_runtime import FaultyRuntime

_MODEL = bare(SPECS["bool-mask"])
_SIZES = {"batch_size": 1, "q_seq_len": 3, "kv_seq_len": 5}
_LADDER = [f"spread {spread:g}" for spread in LADDER]
_PROBES = [f"probe {probe.name}" for probe in probes_for(SPECS["bool-mask"])]


def _checked(runtime: Runtime, check: CheckOptions) -> list[AgreementRecord]:
    return check_model(_MODEL, runtime, check, target="t", expectations=ExpectationCache())


@pytest.mark.parametrize("fault", ["mask-right-open", "nan-swallowed"])
def test_a_fault_that_only_a_probe_shows_is_wrong(fault: str) -> None:
    """The whole ladder passes a mask that is read too generously, or a NaN that is lost; a probe does not."""
    runtime = FaultyRuntime(get_runtime("onnx-reference"), find_fault(fault))
    verdicts = {record.inputs: record for record in _checked(runtime, CheckOptions(sizes=_SIZES, probes=True))}
    assert {verdicts[step].verdict for step in _LADDER} == {Verdict.OK}
    wrong = [record for record in verdicts.values() if record.verdict is Verdict.WRONG]
    assert wrong
    assert {record.inputs.split()[0] for record in wrong} == {"probe"}
    blind = _checked(runtime, CheckOptions(sizes=_SIZES))
    assert {record.verdict for record in blind} == {Verdict.OK}


def test_probes_come_behind_the_ladder() -> None:
    """Every rung and every probe of the attention, each a record that a right runtime passes."""
    records = _checked(get_runtime("ort-cpu"), CheckOptions(sizes=_SIZES, probes=True))
    assert [record.inputs for record in records] == [*_LADDER, *_PROBES]
    assert {record.verdict for record in records} <= {Verdict.OK, Verdict.ROUNDING_LEVEL}


def test_no_probes_beside_given_arrays() -> None:
    """Who gives arrays is told about these, and about nothing else."""
    given = draw_feeds(_MODEL, _SIZES, spread=1.0, seed=0)
    records = _checked(get_runtime("ort-cpu"), CheckOptions(sizes=_SIZES, inputs=given, probes=True))
    assert [record.inputs for record in records] == ["given"]


def test_probes_are_small() -> None:
    """Long axes are cut to one length with a ragged tile; short ones stay."""
    steps = list(probe_steps(_MODEL, CheckOptions(sizes={"batch_size": 2, "q_seq_len": 5, "kv_seq_len": 4096})))
    assert [step.word for step in steps] == _PROBES
    for step in steps:
        assert step.check.sizes == {"batch_size": 2, "q_seq_len": 5, "kv_seq_len": 67}
        assert step.feeds["K"].shape == (2, 2, 67, 8)


def test_larger_model_has_no_probes_of_its_own() -> None:
    """Its weights decide what the attention sees, so no input of it can be a probe."""
    assert list(probe_steps(load_model(inner_attention()), CheckOptions(sizes={"batch_size": 1, "q_seq_len": 3}))) == []


def _steps(model: OnnxModel, seed: int) -> list[InputStep]:
    """Every step of a check that draws its inputs."""
    check = CheckOptions(sizes=_SIZES, seed=seed)
    with get_runtime("onnx-reference").load(model.tapped(), LoadOptions(threads=1)) as session:
        return [*ladder(model, session, check), *probe_steps(model, check)]


def _attention_of_ids() -> OnnxModel:
    """Token ids, looked up in a table: no factor gives the logits a chosen spread."""
    table = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    model = model_of(
        [
            helper.make_node("Cast", ["ids"], ["rows"], to=onnx.TensorProto.INT64),
            helper.make_node("Gather", ["table", "rows"], ["x"]),
            helper.make_node("Attention", ["x", "x", "x"], ["y"]),
        ],
        {"ids": ["batch_size", 2, "q_seq_len"]},
        {"y": ["batch_size", 2, "q_seq_len", 8]},
        {"table": table},
    )
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    return load_model(onnx.shape_inference.infer_shapes(model))


_SEEDED = {
    "attention": _MODEL,
    "attention, float mask": bare(SPECS["float-mask"]),
    "attention in a model": load_model(inner_attention()),
    "attention of ids": _attention_of_ids(),
    "no attention": load_model(
        model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": ["batch_size", 8]}, {"y": ["batch_size", 8]})
    ),
}


@pytest.mark.parametrize("name", _SEEDED)
def test_every_step_is_drawn_from_the_seed(name: str) -> None:
    """One seed draws the same inputs again; another one draws others in every step, on the ladder every array."""
    first, again, other = (_steps(_SEEDED[name], seed) for seed in (5, 5, 6))
    assert [step.word for step in first] == [step.word for step in again] == [step.word for step in other]
    for one, same, another in zip(first, again, other, strict=True):
        assert all(np.array_equal(one.feeds[key], same.feeds[key], equal_nan=True) for key in one.feeds), one.word
        # What is positive: a module's inputs are also multiplied by a factor, which is measured on drawn inputs.
        changed = [key for key in one.feeds if not np.array_equal(one.feeds[key] > 0, another.feeds[key] > 0)]
        assert changed, one.word
        # A probe has arrays without chance, such as queries of zero.
        assert one.word.startswith("probe") or changed == list(one.feeds), one.word
