"""Tapped values accuse an attention only if the taps do not change what runs; the outputs without taps are judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject, Verdict
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import (
    LoadOptions,
    Purpose,
    RanReport,
    Runtime,
    Session,
    Unsupported,
    get_runtime,
)
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.verify.untapped import changed_kernels
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.workflows.planted_runtime import Planted, fault
from tests.workflows.quantised_models import MODELS
from tests.workflows.wrapped_runtime import WrappedRuntime, WrappedSession

Arrays = Mapping[str, NDArray[np.generic]]
Outputs = dict[str, NDArray[np.generic]]

_SIZES = {"batch": 2, "length": 11}
# Models in which onnxruntime 1.32.0 gives the tapped output of the attention another value.
_REWRITTEN = ("all, and the output", "the output")


def _checked(model: OnnxModel, runtime: Runtime) -> list[AgreementRecord]:
    return check_model(model, runtime, CheckOptions(sizes=_SIZES), target="t", expectations=ExpectationCache())


def _by_subject(records: list[AgreementRecord], subject: Subject) -> list[AgreementRecord]:
    return [record for record in records if record.subject is subject]


@pytest.mark.parametrize("runtime", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("name", MODELS)
def test_a_right_model_is_not_accused(name: str, runtime: str) -> None:
    """Values that a runtime rewrites, fuses or computes in another type accuse nothing."""
    if isinstance(get_runtime(runtime).available(), Unsupported):
        pytest.skip(f"{runtime} is not installed")
    records = _checked(MODELS[name](), get_runtime(runtime))
    assert [record.reason for record in records if record.outcome is Outcome.DISAGREES] == []
    assert any(record.outcome is Outcome.OK for record in records)


@pytest.mark.parametrize("name", _REWRITTEN)
def test_a_rewritten_value_is_a_note(name: str) -> None:
    """The attention is not judged by itself, with the reason; the outputs without taps are compared instead."""
    records = _checked(MODELS[name](), get_runtime("ort-cpu"))
    for record in _by_subject(records, Subject.ATTENTION):
        assert (record.outcome, record.verdict) == (Outcome.SKIPPED, None)
        assert record.reason.startswith("Not judged by itself: the tap changes what runs (DequantizeLinear ")
    assert [record.outcome for record in _by_subject(records, Subject.OUTPUT)] == [Outcome.OK] * 3


@pytest.mark.parametrize("name", ["all, and the output", "only K", "normalised"])
def test_a_wrong_attention_stays_wrong(name: str) -> None:
    """A fault that is there without optimisation too is proved by the tapped values, whatever the taps change."""
    records = _checked(MODELS[name](), Planted(fault("scale-missing")))
    assert {record.verdict for record in _by_subject(records, Subject.ATTENTION)} >= {Verdict.WRONG}


@dataclass
class _Changed(WrappedSession):
    """A session whose outputs are changed."""

    session: Session
    change: Callable[[Outputs], Outputs]

    def run(self, inputs: Arrays) -> Outputs:
        return self.change(self.session.run(inputs))


@dataclass
class _OwnOptions(WrappedRuntime):
    """onnxruntime's CPU provider, with a fault where `applies` says so."""

    applies: Callable[[OnnxModel, LoadOptions], bool]
    change: Callable[[Outputs], Outputs]
    name: str = "ort-cpu"
    measures_time: bool = True
    real: Runtime = field(default_factory=lambda: get_runtime("ort-cpu"))

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        session = self.real.load(model, options)
        return _Changed(session, self.change) if self.applies(model, options) else session


def _larger(outputs: Outputs) -> Outputs:
    return {**outputs, "y": outputs["y"] * np.float32(1.05)}


def _one_nan(outputs: Outputs) -> Outputs:
    spoiled = outputs["y"].copy()
    spoiled[0, 0, 0] = np.nan
    return {**outputs, "y": spoiled}


@pytest.mark.parametrize("change", [_larger, _one_nan])
@pytest.mark.parametrize("name", ["normalised", "only V", "dynamically quantised", "per channel"])
def test_a_fault_that_the_taps_hide_is_found(name: str, change: Callable[[Outputs], Outputs]) -> None:
    """A kernel that is wrong only where no inner value is returned: the output disagrees, the tapped run is right."""
    hidden = _OwnOptions(lambda model, _: len(model.ir.graph.outputs) == 1, change)
    records = _checked(MODELS[name](), hidden)
    wrong = [record for record in records if record.outcome is Outcome.DISAGREES]
    assert {(record.subject, record.site) for record in wrong} == {(Subject.OUTPUT, "y")}
    assert wrong[0].reason.startswith("Output 'y' is wrong without the taps, that of the tapped run is right. ")


def test_outputs_decide_where_the_attention_is_not_judged() -> None:
    """With the attention out of reach, an output that differs from the run without optimisation is wrong."""
    optimised = _OwnOptions(lambda _, options: options.optimise, _larger)
    records = _checked(MODELS["the output"](), optimised)
    wrong = [record for record in records if record.outcome is Outcome.DISAGREES]
    assert {(record.subject, record.site) for record in wrong} == {(Subject.OUTPUT, "y")}
    assert "that of the run without optimisation is right" in wrong[0].reason


def test_a_last_bit_is_no_finding() -> None:
    """Rounding that changes with the taps is right: the limit is twice the error of the tapped run and a rounding."""

    def next_bit(outputs: Outputs) -> Outputs:
        return {**outputs, "y": np.nextafter(outputs["y"], np.float32(np.inf), dtype=np.float32)}

    bare = _OwnOptions(lambda model, _: len(model.ir.graph.outputs) == 1, next_bit)
    assert {record.outcome for record in _checked(MODELS["normalised"](), bare)} == {Outcome.OK}


def test_openvino_in_its_default_precision() -> None:
    """Where OpenVINO chooses its precision, all sessions of a check choose the same, and a right model stays right."""
    real = get_runtime("openvino")
    if isinstance(real.available(), Unsupported):
        pytest.skip("OpenVINO is not installed")

    class Default(_OwnOptions):
        def load(self, model: OnnxModel, options: LoadOptions) -> Session:
            usual = LoadOptions(threads=options.threads, purpose=Purpose.TIMING, optimise=options.optimise)
            return self.real.load(model, usual)

    runtime = Default(lambda *_: False, _larger, name="openvino", real=real)
    outputs = _by_subject(_checked(MODELS["normalised"](), runtime), Subject.OUTPUT)
    assert [record.reason for record in outputs if record.outcome is Outcome.DISAGREES] == []


def test_changed_kernels_are_named() -> None:
    """By their number; a precision that changes comes first; nothing is said where nothing changes."""

    def report(precision: str = "float32", **counts: int) -> RanReport:
        return RanReport(providers={}, node_counts=counts, precision=precision)

    assert changed_kernels(report(MatMul=2, QGemm=1), report(MatMul=2, Gemm=1)) == "Gemm 0 -> 1, QGemm 1 -> 0"
    assert changed_kernels(report(MatMul=2), report(MatMul=2)) == ""
    assert changed_kernels(report(), report("bfloat16", MatMul=2)) == "precision float32 -> bfloat16"
    many = report(**{f"K{number}": 1 for number in range(6)})
    assert changed_kernels(report(), many) == "K0 0 -> 1, K1 0 -> 1, K2 0 -> 1, K3 0 -> 1 and 2 more"
