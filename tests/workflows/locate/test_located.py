"""If a model of several nodes disagrees, `verify` writes a record of the first bad node."""

from dataclasses import replace

import pytest

from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ExportRecord,
    LocatedRecord,
    Outcome,
    Record,
    Subject,
    Verdict,
)
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.locate import record as locating
from sdpa_onnx.workflows.locate.record import StepRecorder, locate
from sdpa_onnx.workflows.verify.verify_file import verify_file
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.graph.models import SPECS, bare, inner_attention, load_model
from tests.sweep.fakes import plant
from tests.workflows.altered import Altered, attribute, scaled

_SIZES = {"batch_size": 1, "q_seq_len": 3}
_SCALED = attribute("scale", 0.36)


def _verified(monkeypatch: pytest.MonkeyPatch, model: OnnxModel, runtime: Altered) -> list[Record]:
    plant(monkeypatch, runtime)
    check = CheckOptions(sizes={"batch_size": 2}, spreads=(1.0,))
    return list(verify_file(model, ["ort-cpu"], check, target="t"))


def test_wrong_attention_inside_a_model_is_located(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record names the node, its operator and value, and the judgement that it explains."""
    records = _verified(monkeypatch, load_model(inner_attention()), Altered(node="attend", alter=_SCALED))
    (located,) = [record for record in records if isinstance(record, LocatedRecord)]
    bad = next(record for record in records if record.outcome is Outcome.DISAGREES)
    assert isinstance(bad, AgreementRecord)
    assert (located.site, located.sizes, located.inputs) == (bad.site, bad.sizes, "spread 1")
    assert (located.outcome, located.verdict) == (Outcome.DISAGREES, Verdict.WRONG)
    assert (located.node, located.op_type, located.value) == ("attend", "Attention", "inner")
    assert located.max_abs_error > located.allowed > 0.0
    assert located.reason == located.diagnosis
    assert located.diagnosis.startswith("The first bad node on ort-cpu is 'attend' (Attention): ")


def test_wrong_projection_of_a_module_is_located(monkeypatch: pytest.MonkeyPatch, module_model: OnnxModel) -> None:
    """Only the module's output disagrees; the bad node is the projection, not the attention after it."""
    node = next(node for node in module_model.ir.graph if node.op_type in ("MatMul", "Gemm"))
    records = _verified(monkeypatch, module_model, Altered(node=node.name or "", alter=scaled(1.01)))
    (located,) = [record for record in records if isinstance(record, LocatedRecord)]
    assert located.subject is Subject.OUTPUT
    assert located.node == node.name


def test_right_model_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing disagrees, so there is no search and no record of one."""
    records = _verified(monkeypatch, load_model(inner_attention()), Altered(node="nowhere", alter=_SCALED))
    assert {record.outcome for record in records} == {Outcome.OK}
    assert not [record for record in records if isinstance(record, LocatedRecord)]
    assert isinstance(records[-1], ExportRecord)


def _disagreement(model: OnnxModel, runtime: Altered) -> tuple[AgreementRecord, StepRecorder]:
    recorder = StepRecorder()
    check = CheckOptions(sizes=_SIZES, spreads=(1.0,))
    found = check_model(model, runtime, check, target="t", expectations=ExpectationCache(), keep=recorder)
    return next(record for record in found if record.outcome is Outcome.DISAGREES), recorder


def test_search_that_finds_nothing_is_ok() -> None:
    """If every node is right by itself and together, the record has outcome ok and no reason."""
    model = load_model(inner_attention())
    bad, recorder = _disagreement(model, Altered(node="attend", alter=_SCALED))
    located = locate(model, get_runtime("ort-cpu"), bad, recorder.steps[bad.inputs], threads=1)
    assert located is not None
    assert (located.outcome, located.reason, located.node, located.verdict) == (Outcome.OK, "", "", None)
    assert (located.judged, located.not_judged) == (3, 0)
    assert located.diagnosis == "No bad node on ort-cpu: 3 nodes were judged, each by itself."


def test_failed_search_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that raises is a record with the reason, and the judgement stays."""
    model = load_model(inner_attention())
    runtime = Altered(node="attend", alter=_SCALED)
    bad, recorder = _disagreement(model, runtime)

    def fail(*_: object, **__: object) -> None:
        raise ModelError("the model cannot be read.")

    monkeypatch.setattr(locating, "first_bad_node", fail)
    located = locate(model, runtime, bad, recorder.steps[bad.inputs], threads=1)
    assert located is not None
    assert (located.outcome, located.node) == (Outcome.FAILED, "")
    assert located.reason == "The search for the first bad node failed: the model cannot be read."


def test_single_node_is_not_searched() -> None:
    """A model of one node is not searched, nor is the torch runtime, which has no graph."""
    model = load_model(inner_attention())
    runtime = Altered(node="attend", alter=_SCALED)
    bad, recorder = _disagreement(model, runtime)
    arrays = recorder.steps[bad.inputs]
    assert locate(bare(SPECS["plain"]), runtime, bad, arrays, threads=1) is None
    assert locate(model, replace(runtime, name="torch"), bad, arrays, threads=1) is None


def test_arrays_are_forwarded() -> None:
    """The second callback receives the arrays too, by runtime and step."""
    seen: list[tuple[str, str]] = []
    recorder = StepRecorder(also=lambda runtime, step, _: seen.append((runtime, step)))
    check = CheckOptions(sizes=_SIZES, spreads=(0.3, 1.0))
    model = load_model(inner_attention())
    check_model(model, get_runtime("ort-cpu"), check, target="t", expectations=ExpectationCache(), keep=recorder)
    assert seen == [("ort-cpu", "spread 0.3"), ("ort-cpu", "spread 1")]
    assert [*recorder.steps] == ["spread 0.3", "spread 1"]
    assert {"x", "y", "q", "inner"} <= {*recorder.steps["spread 1"]}
