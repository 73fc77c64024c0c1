"""Eight places (If, Loop, Scan, functions) with six kinds of attention each: read, judged, converted; faults found."""

from dataclasses import replace

import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import MaskKind
from sdpa_onnx.core.records.records import AgreementRecord, Outcome
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import lift
from sdpa_onnx.workflows.convert.convert_file import prove_converted
from sdpa_onnx.workflows.convert.convert_model import ConvertedModel, convert_model
from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file
from tests.graph.nested_models import KINDS_INSIDE, NESTED, PLACES_INSIDE, nested_proto

_MASKED = ("float mask", "bool mask")


def _model(place: str, kind: str, *, scale: float = 0.35355338, masked: bool = True) -> OnnxModel:
    return load_model(nested_proto(place, kind, scale=scale, masked=masked))


def _converted(place: str, kind: str, form: Form = Form.DECOMPOSED) -> ConvertedModel:
    return convert_model(_model(place, kind), form, again=True)


def test_at_least_five_of_each() -> None:
    """Of each place four or more kinds, of each kind seven or more places."""
    assert all(sum(place == one for one, _ in NESTED) >= 4 for place in PLACES_INSIDE)
    assert all(sum(kind == one for _, one in NESTED) >= 7 for kind in KINDS_INSIDE)


@pytest.mark.parametrize(("place", "kind"), NESTED)
def test_read(place: str, kind: str) -> None:
    """With its heads, its width and its mask; a function that is called twice has it twice."""
    found = find_attentions(_model(place, kind).ir).found
    assert [one.reason for one in found] == [""] * (2 if place == "function called twice" else 1)
    for one in found:
        assert one.attention is not None
        spec = one.attention.spec
        assert (spec.q_num_heads, spec.kv_num_heads, spec.head_dim) == (2, 1 if kind == "grouped heads" else 2, 8)
        assert (spec.mask is MaskKind.FLOAT) == (kind in _MASKED)
        assert spec.scale_value == pytest.approx(0.35355338, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "kind"), NESTED)
def test_judged(place: str, kind: str) -> None:
    """Every attention by the oracle."""
    extras = VerifyExtras(axes=False)
    records = verify_file(_model(place, kind), ["ort-cpu"], CheckOptions(sizes={}), target="t", extras=extras)
    judged = [record for record in records if isinstance(record, AgreementRecord)]
    assert judged
    assert {record.outcome for record in judged} == {Outcome.OK}


@pytest.mark.slow
@pytest.mark.parametrize("form", [Form.DECOMPOSED, Form.ATTENTION])
@pytest.mark.parametrize(("place", "kind"), NESTED)
def test_converted_and_proved(place: str, kind: str, form: Form) -> None:
    """In each form; onnxruntime's `Attention` is wrong for a query whose every key has the lowest mask."""
    converted = _converted(place, kind, form)
    assert converted.refused == {}
    assert prove_converted(converted, target="t").is_right == (form is not Form.ATTENTION or kind not in _MASKED)


def _misread(place: str, kind: str, other: OnnxModel) -> bool:
    """Whether the proof finds that the file computes something else than the attention that was read."""
    converted, source = _converted(place, kind), lift(other).model
    wrong = replace(source, sites=converted.source.sites, body_sites=converted.source.body_sites, ir=source.ir.clone())
    return not prove_converted(replace(converted, source=wrong), target="t").is_right


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES_INSIDE)
def test_a_scale_that_is_2_percent_off_is_found(place: str) -> None:
    """In every place."""
    assert _misread(place, "plain", _model(place, "plain", scale=0.35355338 * 1.02))


@pytest.mark.slow
@pytest.mark.parametrize("place", [place for place, kind in NESTED if kind == "float mask"])
def test_a_dropped_mask_is_found(place: str) -> None:
    """The result leaves its mask out."""
    converted = _converted(place, "float mask")
    for node in converted.model.ir.graph.all_nodes():
        if node.op_type == "Add" and any(one is not None and _is_mask(one) for one in node.inputs):
            kept = next(one for one in node.inputs if one is not None and not _is_mask(one))
            node.outputs[0].replace_all_uses_with(kept, replace_graph_outputs=True)
    assert not prove_converted(converted, target="t").is_right


def _is_mask(value: ir.Value) -> bool:
    """Whether a value is the mask, under the names that it has where it is used."""
    while (node := value.producer()) is not None and node.op_type in ("Identity", "Unsqueeze", "Cast"):
        first = node.inputs[0]
        if first is None:
            return False
        value = first
    return value.name in ("m_in", "mi")
