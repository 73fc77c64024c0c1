"""The proof reports which of the two is wrong, and does not use a wrong source as a reference."""

from dataclasses import replace
from importlib.metadata import version

import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import Outcome, Subject
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.lower.by_length import Branch, lower_by_length
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.lifted_model import lift
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from sdpa_onnx.workflows.convert.proof import ConversionProof, prove_conversion
from tests.workflows.convert_sources import with_ids, with_projections
from tests.workflows.quantised_models import MODELS

_CACHED = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True, has_past=True)


def _proof(source: object, form: Form, **effort: int) -> ConversionProof:
    done = convert_model(load_model(source), form, again=True)  # type: ignore[arg-type]
    return prove_conversion(
        done.source, done.model, get_runtime("ort-cpu"), target="result", effort=RunEffort(**effort) if effort else None
    )


@pytest.mark.skipif(version("onnxruntime") != "1.32.0", reason="the fault of onnxruntime 1.32.0")
def test_wrong_source_is_reported() -> None:
    """One query with several new keys is wrong in the source's kernel: the oracle finds it, and the result is right."""
    proof = _proof(build_attention_model(_CACHED, opset=23, dtype=Dtype.FLOAT32), Form.DECOMPOSED)
    assert proof.is_right
    wrong = [record for record in proof.source if record.outcome is Outcome.DISAGREES]
    assert wrong
    assert {record.sizes.q_seq_len for record in wrong} == {1}


def test_both_errors_are_reported() -> None:
    """Each output of each run has a record of the source and one of the result."""
    proof = _proof(with_projections(), Form.DECOMPOSED, count=2)
    of_source = [(record.site, record.inputs) for record in proof.source if record.subject is Subject.OUTPUT]
    of_result = [(record.site, record.inputs) for record in proof.records if record.subject is Subject.OUTPUT]
    assert of_source == of_result
    assert {site for site, _ in of_result} == {"y", "best"}


def test_other_interface_is_refused() -> None:
    """A result whose input has another name is refused, even if its outputs are right."""
    done = convert_model(load_model(with_projections()), Form.DECOMPOSED, again=True)
    done.model.ir.graph.inputs[0].name = "other"
    proof = prove_conversion(done.source, done.model, get_runtime("ort-cpu"), target="result")
    (record,) = proof.records
    assert not proof.is_right
    assert record.reason == "The inputs changed: from 'x' FLOAT, 'keep' BOOL to 'other' FLOAT, 'keep' BOOL."


def test_source_that_runs_nowhere() -> None:
    """Without a source there is nothing to compare with, and the error states it."""
    source = with_ids()
    source.graph.node[0].domain = "nobody"
    source.opset_import.add(domain="nobody", version=1)
    with pytest.raises(ModelError) as raised:
        _proof(source, Form.DECOMPOSED)
    assert str(raised.value) == (
        "The source itself runs neither on ort-cpu nor on another runtime that is always installed, so nothing can be "
        "compared with it. Choose a runtime that runs it with --runtime."
    )


def test_blocks_are_reached() -> None:
    """A form with a loop or a branch is also run at lengths of several blocks."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, is_causal=True)
    proof = _proof(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32), Form.BLOCKED, count=1)
    assert proof.is_right
    lengths = {(record.sizes.q_seq_len, record.sizes.kv_seq_len) for record in proof.records}
    assert {(269, 521), (521, 269)} <= lengths


def test_both_sides_of_a_branch_are_reached() -> None:
    """Two forms behind an `If` on the length also run at the last length of one and the first of the other."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, is_causal=True)
    model = load_model(ir.to_proto(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32)))
    result = lift(model)
    (attention,) = result.read
    short, long = (Branch(form=form, options=LowerOptions()) for form in (Form.ATTENTION, Form.DECOMPOSED))
    written = lower_by_length(result.model.ir, attention, short=short, long=long, at=700)
    proof = prove_conversion(
        lift(model).model,
        replace(result.model, sites=(written.site,)),
        get_runtime("ort-cpu"),
        target="result",
        effort=RunEffort(count=1),
    )
    assert proof.is_right
    assert {700, 701} <= {record.sizes.q_seq_len for record in proof.records}


def test_values_that_the_taps_change_accuse_nothing() -> None:
    """QDQ behind an attention: source and result are right, and the outputs without taps decide, with a note."""
    proof = _proof(MODELS["the output"]().ir, Form.DECOMPOSED, count=2)
    assert proof.is_right, [record.reason for record in proof.records if record.outcome is not Outcome.OK]
    assert {record.site for record in proof.records if record.subject is Subject.OUTPUT} == {"y"}
    assert any(note.startswith("attend: Not judged by itself: the tap changes what runs") for note in proof.notes)
