"""A file of ours whose nodes were changed: metadata and nodes contradict each other, and every command reports it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.records.gate_records import Gate
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import lift
from sdpa_onnx.workflows.compare.models import CompareOptions, compare_models
from sdpa_onnx.workflows.export.export_target import export_target
from sdpa_onnx.workflows.verify.inspect_file import inspect_model
from sdpa_onnx.workflows.verify.verify_file import verify_file

_SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=32, is_causal=True, softcap=20.0)
_PLAIN = AttentionSpec(q_num_heads=4, kv_num_heads=4, head_dim=32, is_causal=True)
Change = Callable[[onnx.ModelProto], None]


def _attribute(name: str, value: float) -> Change:
    def change(model: onnx.ModelProto) -> None:
        (node,) = (node for node in model.graph.node if "Attention" in node.op_type)
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])

    return change


def _metadata(name: str, value: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        next(entry for entry in model.metadata_props if entry.key == name).value = value

    return change


_CASES = {
    "scale": (_SPEC, 23, None, _attribute("scale", 0.18), "scale 0.176777 in the metadata, 0.18 in the nodes"),
    "softcap": (_SPEC, 23, None, _attribute("softcap", 0.0), "softcap 20 in the metadata, 0 in the nodes"),
    "causal": (_SPEC, 23, None, _attribute("is_causal", 0), "causal yes in the metadata, no in the nodes"),
    "scale of ort-mha": (
        _PLAIN,
        18,
        Form.ORT_MHA,
        _attribute("scale", 0.18),
        "scale 0.176777 in the metadata, 0.18 in the nodes",
    ),
    "window of ort-gqa": (
        _PLAIN,
        18,
        Form.ORT_GQA,
        _attribute("local_window_size", 8),
        "left window -1 in the metadata, 7 in the nodes",
    ),
    "opset": (_SPEC, 23, None, _metadata("sdpa_onnx.opset", "20"), "opset 20 in the metadata, 23 in the file"),
}


def _pair(folder: Path, name: str) -> tuple[Path, Path]:
    """The file as exported, and the changed one."""
    spec, opset, form, change, _ = _CASES[name]
    model = export_target(spec, opset=opset, form=form, dtype=None)
    good = model.save(folder / "good.onnx")
    proto = onnx.load(good)
    change(proto)
    onnx.save(proto, folder / "changed.onnx")
    return good, folder / "changed.onnx"


@pytest.mark.parametrize(
    "name", [name if name == "scale" else pytest.param(name, marks=pytest.mark.slow) for name in _CASES]
)
def test_a_contradiction_is_reported_by_every_command(name: str, tmp_path: Path) -> None:
    """`inspect` warns, `verify` has a record that fails, and the nodes count; the file as exported has neither."""
    text = _CASES[name][-1]
    good, changed = _pair(tmp_path, name)
    assert lift(load_model(good)).contradictions == {}
    assert any(
        text in warning for record in inspect_model(load_model(changed), target="t") for warning in record.warnings
    )
    records = list(verify_file(load_model(changed), ["ort-cpu"], CheckOptions(sizes={}, spreads=(1.0,)), target="t"))
    failing = [record for record in records if record.outcome is not Outcome.OK]
    assert [getattr(record, "subject", "") for record in failing] == [Subject.READING]
    assert text in failing[0].reason
    assert any(isinstance(record, AgreementRecord) and record.subject is Subject.ATTENTION for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scale", "opset"])
def test_compare_reports_a_contradiction(name: str, tmp_path: Path) -> None:
    """A row that fails for HEAD alone; none where both agree."""
    limits = GateLimits(skipped=frozenset({Gate.TIME, Gate.MEMORY, Gate.GRAPH}))
    options = CompareOptions(runtimes=["ort-cpu"], limits=limits, patience_seconds=None)
    rows = compare_models(*_pair(tmp_path, name), options)
    (found,) = (row for row in rows if row.fails and row.subject is Subject.READING)
    assert _CASES[name][-1] in found.evidence
    assert not [row for row in rows if row.fails and row.subject is Subject.ATTENTION]


@pytest.mark.slow
@pytest.mark.parametrize("spec", [_SPEC, _PLAIN, replace(_PLAIN, left_window=5), replace(_PLAIN, has_past=True)])
@pytest.mark.parametrize(("opset", "form"), [(18, None), (23, None), (18, Form.ORT_MHA), (18, Form.ORT_GQA)])
def test_a_file_as_exported_agrees(spec: AttentionSpec, opset: int, form: Form | None, tmp_path: Path) -> None:
    """Every form that can be read back."""
    if form is Form.ORT_MHA and (spec.softcap or spec.has_past or spec.has_window):
        pytest.skip("this form has no such attention")
    if form is Form.ORT_GQA and (spec.has_past or spec.softcap):
        pytest.skip("this form has no such attention")
    path = export_target(spec, opset=opset, form=form, dtype=None).save(tmp_path / "m.onnx")
    assert lift(load_model(path)).contradictions == {}
