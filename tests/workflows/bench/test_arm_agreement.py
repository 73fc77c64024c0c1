"""Outputs of timed arms: right ones pass, planted faults are reported, and unjudged arms are named."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from sdpa_onnx.core.records.records import Subject, Verdict
from sdpa_onnx.core.records.verdicts import Outcome
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.arm_job import ArmJob, LoadTimes, RanFacts
from sdpa_onnx.runtimes.array_files import read_arrays, write_arrays
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, get_runtime
from sdpa_onnx.runtimes.workers import WorkerFailedError
from sdpa_onnx.workflows.bench.arm_agreement import ArmAgreement, judge_numbers
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.timing.job_folder import Arm
from tests.graph.body_models import body_proto
from tests.workflows.planted_runtime import Planted, fault
from tests.workflows.quantised_models import MODELS
from tests.workflows.user_modules import SelfAttention

_SIZES = {"batch_size": 1, "q_seq_len": 5, "kv_seq_len": 7}


class InProcess:
    """A worker without a process.

    Outputs are scaled by `factor`, with `only_untapped` those of models with one output. `fails`: the error of `load`.
    """

    factor = 1.0
    only_untapped = False
    fails = ""
    runtime: ClassVar[Runtime] = get_runtime("ort-cpu")
    started: ClassVar[list[tuple[str, Path | None, int]]] = []

    def __init__(self, engine: str, *, python: Path | None, threads: int, **_: object) -> None:
        self.started.append((engine, python, threads))

    def unload(self) -> None: ...

    def stop(self) -> None: ...

    def load(self, job: ArmJob, *, patience_seconds: float | None = None) -> LoadTimes:
        if self.fails:
            raise WorkerFailedError(self.fails)
        options = LoadOptions(optimise=job.settings["graph_optimization_level"] != "ORT_DISABLE_ALL")
        with self.runtime.load(load_model(job.model), options) as session:
            self.made = session.run(read_arrays(job.inputs))
            self.report = session.ran()
        return LoadTimes(create_seconds=0.5, first_seconds=0.25)

    def visit(self, calls: int) -> None: ...

    def ran(self, *, with_graph: bool = True) -> RanFacts:
        return RanFacts(report=self.report)

    def outputs(self, path: Path) -> None:
        factor = 1.0 if self.only_untapped and len(self.made) > 1 else self.factor
        write_arrays(path, {name: np.asarray(factor * array, array.dtype) for name, array in self.made.items()})


@pytest.fixture
def judged() -> Callable[..., ArmAgreement]:
    """Judges arms, each in a worker of the kind given."""

    def judge(*models: OnnxModel, check: CheckOptions | None = None, **worker: object) -> ArmAgreement:
        made = type("Made", (InProcess,), {**worker, "started": []})
        arms = [Arm(name=f"arm {n}", model=model, runtime=get_runtime("ort-cpu")) for n, model in enumerate(models)]
        check = check or CheckOptions(sizes=_SIZES, spreads=(1.0,))
        found = judge_numbers(arms, check, target="t", patience_seconds=60.0, start=made)
        judge.started = made.started  # type: ignore[attr-defined]
        return found

    return judge


def test_inputs_without_a_number(judged: Callable[..., ArmAgreement], bare_model: OnnxModel) -> None:
    """If the oracle itself has no finite number, the arm is not judged, and never right."""
    shapes = {"Q": (1, 4, 3, 8), "K": (1, 2, 3, 8), "V": (1, 2, 3, 6)}
    given = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}
    found = judged(bare_model, check=CheckOptions(sizes={}, inputs=given))
    assert {one.outcome for one in found.records} == {Outcome.FAILED}
    reason = "Nothing could be judged: the oracle itself has no finite number here."
    assert (found.warnings, found.unjudged) == ({}, {"arm 0": reason})


def test_right_numbers(judged: Callable[..., ArmAgreement], bare_model: OnnxModel, decomposed_model: OnnxModel) -> None:
    """Every arm has a judgement at the timed sizes, and no warning; arms that start alike share a process."""
    found = judged(bare_model, decomposed_model)
    assert [(one.target, one.verdict, one.outcome) for one in found.records] == [
        ("t, arm 0", Verdict.OK, Outcome.OK),
        ("t, arm 1", Verdict.OK, Outcome.OK),
    ]
    assert (found.records[0].sizes.q_seq_len, found.records[0].sizes.kv_seq_len) == (5, 7)
    assert (found.warnings, found.unjudged) == ({}, {})
    assert judged.started == [("engines.onnxruntime:OrtCpu", None, 1)]  # type: ignore[attr-defined]


def test_wrong_outputs_are_reported(judged: Callable[..., ArmAgreement], bare_model: OnnxModel) -> None:
    """An output that is 1 % too large is proved wrong, with the evidence in one sentence."""
    found = judged(bare_model, factor=1.01)
    assert found.records[0].outcome is Outcome.DISAGREES
    (sentence,) = found.warnings["arm 0"]
    assert sentence == f"Numbers wrong: {found.records[0].diagnosis}"


def test_model_that_is_not_what_it_says(judged: Callable[..., ArmAgreement], bare_model: OnnxModel) -> None:
    """A graph that is causal under a description that is not is wrong, though the runtime is right."""
    site = bare_model.sites[0]
    altered = replace(bare_model, sites=(replace(site, spec=replace(site.spec, is_causal=False)),))
    assert judged(altered).warnings["arm 0"][0].startswith("Numbers wrong: ")


def test_attentions_inside_a_model(
    judged: Callable[..., ArmAgreement], module_model: OnnxModel, tmp_path: Path
) -> None:
    """Each attention of a module's file is judged on its own inputs, and a fault in it is reported."""
    model = load_model(module_model.save(tmp_path / "m.onnx"))
    check = CheckOptions(sizes=dict.fromkeys(model.facts.axes, 6), spreads=(1.0,))
    assert [one.verdict for one in judged(model, check=check).records] == [Verdict.OK]
    assert judged(model, check=check, factor=1.01).warnings["arm 0"]


# Models in which onnxruntime 1.32.0 gives the tapped output of the attention another value, and one where it does not.
_QUANTISED = CheckOptions(sizes={"batch": 2, "length": 11}, spreads=(1.0,))
_REWRITTEN = ("the output", "all, and the output")


@pytest.mark.parametrize("name", [*_REWRITTEN, "only V", "dynamically quantised"])
def test_a_right_quantised_model_has_no_warning(judged: Callable[..., ArmAgreement], name: str) -> None:
    """Values that the runtime rewrites accuse nothing: the outputs without taps are judged instead."""
    found = judged(MODELS[name](), check=_QUANTISED)
    assert (found.warnings, found.unjudged) == ({}, {})
    skipped = {one.subject for one in found.records if one.outcome is Outcome.SKIPPED}
    assert skipped == ({Subject.ATTENTION} if name in _REWRITTEN else set())


@pytest.mark.parametrize("name", [*_REWRITTEN, "only V"])
@pytest.mark.parametrize(
    ("worker", "start"),
    [
        ({"runtime": Planted(fault("scale-missing"))}, "Numbers wrong: "),
        (
            {"factor": 1.5, "only_untapped": True},
            "Numbers suspicious: Output 'y' is wrong without the taps, that of the ",
        ),
    ],
    ids=["attention", "only without taps"],
)
def test_a_fault_of_a_quantised_model_is_reported(
    judged: Callable[..., ArmAgreement], worker: Mapping[str, object], start: str, name: str
) -> None:
    """A fault of the attention, or one of the output that the taps hide."""
    (sentence,) = judged(MODELS[name](), check=_QUANTISED, **worker).warnings["arm 0"]
    assert sentence.startswith(start)


def test_given_inputs(judged: Callable[..., ArmAgreement], bare_model: OnnxModel) -> None:
    """The user's own arrays are judged."""
    rng = np.random.default_rng(0)
    shapes = {"Q": (1, 4, 3, 8), "K": (1, 2, 3, 8), "V": (1, 2, 3, 6)}
    given = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    (record,) = judged(bare_model, check=CheckOptions(sizes={}, inputs=given)).records
    assert (record.inputs, record.verdict, record.sizes.q_seq_len) == ("given", Verdict.OK, 3)


def test_arm_that_fails_is_not_judged(judged: Callable[..., ArmAgreement], bare_model: OnnxModel) -> None:
    """A process that ends is left to the timing, and the reason is recorded."""
    found = judged(bare_model, bare_model, fails="It crashed.")
    assert (found.records, found.unjudged) == ((), {"arm 0": "It crashed.", "arm 1": "It crashed."})
    assert len(judged.started) == 2  # type: ignore[attr-defined]


def test_model_without_a_known_attention(judged: Callable[..., ArmAgreement]) -> None:
    """If no attention can be read nothing runs and nothing is claimed."""
    from tests.graph.models import product

    found = judged(load_model(product()))
    assert (found.records, found.unjudged) == ((), {"arm 0": "no attention of it could be read"})


class _Raises(SelfAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("too long")


def test_a_module_that_raises(judged: Callable[..., ArmAgreement], module_model: OnnxModel) -> None:
    """No arm has wrong numbers because of it: the arm is not judged, and the error of the module is kept."""
    check = CheckOptions(sizes=dict.fromkeys(module_model.facts.axes, 4), spreads=(1.0,))
    found = judged(replace(module_model, source=_Raises()), check=check)
    assert found.warnings == {}
    assert found.unjudged["arm 0"].endswith("does not run at these sizes: ValueError: too long.")
    assert found.module_error.startswith("ValueError at ")


@pytest.mark.parametrize("name", ["if-never-taken", "loop-over-layers", "loop-with-a-cache", "one-outside-one-inside"])
def test_attentions_in_bodies_are_judged(judged: Callable[..., ArmAgreement], name: str) -> None:
    """Each body as a model of its own, also a branch that is not taken; a fault of the runtime is found in it."""
    model = load_model(body_proto(name))
    check = CheckOptions(sizes=dict.fromkeys(model.facts.axes, 4), spreads=(1.0,))
    right = judged(model, check=check)
    sites = {record.site for record in right.records if record.site.endswith("Softmax/p")}
    assert len(sites) == 1
    assert (right.warnings, right.unjudged) == ({}, {})
    wrong = judged(model, check=check, factor=1.02)
    assert list(wrong.warnings) == ["arm 0"]
