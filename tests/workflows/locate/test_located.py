"""Where a model of several nodes disagrees, `verify` names the first bad node, as a record."""

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
    """The record names the node, its operator and value, and the judgement that was looked into."""
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
    """Only the module's end disagrees; what is named is the projection, not the attention behind it."""
    node = next(node for node in module_model.ir.graph if node.op_type in ("MatMul", "Gemm"))
    records = _verified(monkeypatch, module_model, Altered(node=node.name or "", alter=scaled(1.01)))
    (located,) = [record for record in records if isinstance(record, LocatedRecord)]
    assert located.subject is Subject.OUTPUT
    assert located.node == node.name


def test_right_model_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing disagrees, so nothing is looked for."""
    records = _verified(monkeypatch, load_model(inner_attention()), Altered(node="nowhere", alter=_SCALED))
    assert {record.outcome for record in records} == {Outcome.OK}
    assert not [record for record in records if isinstance(record, LocatedRecord)]
    assert isinstance(records[-1], ExportRecord)


def _disagreement(model: OnnxModel, runtime: Altered) -> tuple[AgreementRecord, StepRecorder]:
    told = StepRecorder()
    check = CheckOptions(sizes=_SIZES, spreads=(1.0,))
    found = check_model(model, runtime, check, target="t", expectations=ExpectationCache(), keep=told)
    return next(record for record in found if record.outcome is Outcome.DISAGREES), told


def test_search_that_finds_nothing_is_ok() -> None:
    """Where every node is right by itself and together, the record says so and fails nothing."""
    model = load_model(inner_attention())
    bad, told = _disagreement(model, Altered(node="attend", alter=_SCALED))
    located = locate(model, get_runtime("ort-cpu"), bad, told.steps[bad.inputs], threads=1)
    assert located is not None
    assert (located.outcome, located.reason, located.node, located.verdict) == (Outcome.OK, "", "", None)
    assert (located.judged, located.not_judged) == (3, 0)
    assert located.diagnosis == "No bad node on ort-cpu: 3 nodes were judged, each by itself."


def test_search_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that cannot be made is a record with its reason, and the judgement stays."""
    model = load_model(inner_attention())
    runtime = Altered(node="attend", alter=_SCALED)
    bad, told = _disagreement(model, runtime)

    def fail(*_: object, **__: object) -> None:
        raise ModelError("no way in.")

    monkeypatch.setattr(locating, "first_bad_node", fail)
    located = locate(model, runtime, bad, told.steps[bad.inputs], threads=1)
    assert located is not None
    assert (located.outcome, located.node) == (Outcome.FAILED, "")
    assert located.reason == "The search for the first bad node failed: no way in."


def test_bare_attention_is_its_own_answer() -> None:
    """One node is not searched, nor is the module's own runtime, which has no graph."""
    model = load_model(inner_attention())
    runtime = Altered(node="attend", alter=_SCALED)
    bad, told = _disagreement(model, runtime)
    arrays = told.steps[bad.inputs]
    assert locate(bare(SPECS["plain"]), runtime, bad, arrays, threads=1) is None
    assert locate(model, replace(runtime, name="torch"), bad, arrays, threads=1) is None


def test_arrays_are_handed_on() -> None:
    """Who wants to keep the arrays gets them too, by runtime and step."""
    seen: list[tuple[str, str]] = []
    told = StepRecorder(also=lambda runtime, step, _: seen.append((runtime, step)))
    check = CheckOptions(sizes=_SIZES, spreads=(0.3, 1.0))
    model = load_model(inner_attention())
    check_model(model, get_runtime("ort-cpu"), check, target="t", expectations=ExpectationCache(), keep=told)
    assert seen == [("ort-cpu", "spread 0.3"), ("ort-cpu", "spread 1")]
    assert [*told.steps] == ["spread 0.3", "spread 1"]
    assert {"x", "y", "q", "inner"} <= {*told.steps["spread 1"]}
