"""Planted faults in a real runtime: one fault is one finding, named by its cause; two faults are two."""

import re
from collections.abc import Iterator, Mapping

import onnx
import pytest
from torch import Tensor, nn

from sdpa_onnx.core.faults.fault_kind import Fault, on_blocks
from sdpa_onnx.core.faults.reading_blocks import after_change
from sdpa_onnx.core.faults.reading_inputs import with_spec
from sdpa_onnx.core.records.findings import Finding, group_findings
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, LocatedRecord, Outcome, Record, Verdict
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.locate.record import StepRecorder, locate
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.workflows.altered import Alter, Altered, attribute, node_named, weight_moved
from tests.workflows.planted_runtime import Planted, fault
from tests.workflows.user_modules import SelfAttention, hidden, seeded

# 1/sqrt(8) times 1.018.
_WRONG_SCALE = 1.018 * 8**-0.5
_SIZES = {"batch_size": 2, "q_seq_len": 5, "kv_seq_len": 7, "x_seq_len": 5}


class TwoLayers(nn.Module):
    """Two attentions, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SelfAttention(), SelfAttention()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x))
        return result


@pytest.fixture(scope="module")
def two_layers() -> OnnxModel:
    return export_module(seeded(TwoLayers), (hidden(),), opset=23)


def _scaled_by(factor: float) -> Fault:
    blocks = after_change(with_spec(scale=lambda spec: factor * spec.scale_value))
    return Fault(name="scale-off", says="", applies=lambda _: True, plant=on_blocks(blocks))


def _findings(model: OnnxModel, runtime: Runtime) -> tuple[list[Finding], list[Record]]:
    """Check a model as `verify` does, and search for the first bad node."""
    recorder = StepRecorder()
    check = CheckOptions(sizes={axis: _SIZES[axis] for axis in model.facts.axes}, probes=True)
    records: list[Record] = [
        *check_model(model, runtime, check, target="f.onnx", expectations=ExpectationCache(), keep=recorder)
    ]
    bad = next(one for one in records if one.outcome is Outcome.DISAGREES)
    assert isinstance(bad, AgreementRecord)
    located = locate(model, runtime, bad, recorder.steps[bad.inputs], threads=1)
    records += [] if located is None else [located]
    return group_findings(records), records


def _altered(model: OnnxModel, alters: Mapping[int, Alter]) -> Altered:
    """ONNX Runtime with these attentions altered, by their number."""
    names = [node.name for node in model.ir.graph if node.op_type == "Attention"]

    def alter(graph: onnx.GraphProto, _node: onnx.NodeProto) -> None:
        for number, one in alters.items():
            node = node_named(graph, str(names[number]))
            assert node is not None
            one(graph, node)

    return Altered(node=str(names[next(iter(alters))]), alter=alter)


def test_wrong_scale_is_one_finding(bare_model: OnnxModel) -> None:
    """Every step that disagrees has the same cause, and the first sentence names it without coordinates."""
    (finding,), records = _findings(bare_model, Planted(_scaled_by(1.018)))
    wrong = [one for one in records if one.outcome is Outcome.DISAGREES]
    assert finding.sentence == "The scale is off by 1.8 %: wrong on ort-cpu."
    assert len(wrong) > 5
    assert finding.records == tuple(wrong)
    assert finding.worst.max_bound_ratio == max(one.max_bound_ratio or 0.0 for one in _judged(wrong))  # type: ignore[union-attr]
    assert finding.repeat().startswith("sdpa-onnx verify f.onnx --runtime ort-cpu --size ")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bfloat16-in-secret", "head-pair-swapped", "softmax-left-out", "columns-reversed"])
def test_fault_with_several_diagnoses_is_one_finding(name: str, bare_model: OnnxModel) -> None:
    """A fault that resembles others at some steps is one finding, named as most of its records name it."""
    (finding,), _ = _findings(bare_model, Planted(fault(name)))
    expected = {
        "bfloat16-in-secret": "It behaves like bfloat16",
        "head-pair-swapped": "The first two heads are swapped",
        "softmax-left-out": "resembles no known fault",
        "columns-reversed": "resembles no known fault",
    }
    assert expected[name] in finding.cause


def test_wrong_attention_explains_the_outputs(two_layers: OnnxModel) -> None:
    """An attention of a larger model spoils the outputs, and the search finds it: one finding, with its name."""
    (finding,), records = _findings(two_layers, _altered(two_layers, {0: attribute("scale", _WRONG_SCALE)}))
    assert finding.sentence == "The scale is off by 1.8 % in attention 'first': wrong on ort-cpu."
    assert {id(one) for one in records if one.outcome is Outcome.DISAGREES} == set(map(id, finding.records))
    assert {one.subject.value for one in _judged(finding.records)} == {"attention", "output"}
    assert finding.located is not None


def test_two_faults_are_two_findings(two_layers: OnnxModel) -> None:
    """Different faults in two attentions are two findings, which cover every record that disagrees."""
    alters = {0: attribute("scale", _WRONG_SCALE), 1: attribute("is_causal", 1)}
    findings, records = _findings(two_layers, _altered(two_layers, alters))
    assert sorted(re.sub("to [0-9.,e+]+ times", "to N times", one.cause) for one in findings) == [
        "The output of attention 'second' is off by up to N times its proven bound and resembles no known fault",
        "The scale is off by 1.8 % in attention 'first'",
    ]
    covered = [record for finding in findings for record in finding.records]
    assert len(covered) == sum(one.outcome is Outcome.DISAGREES for one in records)


def test_same_fault_in_two_attentions_is_one_finding(two_layers: OnnxModel) -> None:
    """A kernel that is wrong is wrong in every layer."""
    (finding,), _ = _findings(two_layers, Planted(_scaled_by(1.018)))
    assert finding.sites == ("first", "second")
    assert finding.cause == "The scale is off by 1.8 % in attentions 'first' and 'second'"


def test_other_node_is_named(two_layers: OnnxModel) -> None:
    """If every attention is right and the output is wrong, the finding is the first bad node."""
    name = next(str(node.name) for node in two_layers.ir.graph if node.op_type == "MatMul")
    (finding,), _ = _findings(two_layers, Altered(node=name, alter=weight_moved(0.5)))
    assert finding.sentence == f"Node '{name}' (MatMul) computes a different result: wrong on ort-cpu."
    assert isinstance(finding.located, LocatedRecord)


def test_right_model_has_no_finding(bare_model: OnnxModel) -> None:
    """Records that are ok, skipped or unsupported are no findings."""
    records = check_model(
        bare_model,
        Planted(_scaled_by(1.0)),
        CheckOptions(sizes=_SIZES),
        target="f.onnx",
        expectations=ExpectationCache(),
    )
    skipped = [ExportRecord(outcome=one) for one in (Outcome.SKIPPED, Outcome.UNSUPPORTED)]
    assert group_findings([*records, *skipped]) == []


def _judged(records: list[Record] | tuple[Record, ...]) -> Iterator[AgreementRecord]:
    return (one for one in records if isinstance(one, AgreementRecord))


@pytest.mark.slow
def test_verdict_of_a_doubt(bare_model: OnnxModel) -> None:
    """A finding is suspicious only if none of its records is proven wrong."""
    findings, _ = _findings(bare_model, Planted(fault("tf32-in-secret")))
    assert [one.verdict for one in findings] == [Verdict.WRONG]
