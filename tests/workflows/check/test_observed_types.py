"""Attention behind operators that no shape inference knows is read with the types of a run, judged and converted."""

import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.records import AgreementRecord, Outcome
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import lift
from sdpa_onnx.workflows.check.observed_types import OBSERVED, with_observed_types
from sdpa_onnx.workflows.convert.convert_file import prove_converted
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file
from tests.graph.untyped_models import UNTYPED_MODELS, untyped_proto

# Files in which a batch of any length is legal.
_FREE = ("an operator of onnx.ml", "an element of a sequence that grows", "the result of a loop")


def _model(name: str, *, scale: str = "0.35355338") -> OnnxModel:
    return load_model(untyped_proto(name, scale=scale))


@pytest.mark.parametrize("name", UNTYPED_MODELS)
def test_read_with_the_types_of_a_run(name: str) -> None:
    """Without one it is refused; with one it is read, and a warning says how."""
    (before,) = find_attentions(_model(name).ir).found
    assert before.attention is None
    (found,) = lift(_model(name)).found
    assert found.attention is not None, found.reason
    assert (found.attention.spec.q_num_heads, found.attention.spec.head_dim) == (2, 8)
    assert OBSERVED in found.warnings


def test_fixed_and_moving_axes() -> None:
    """A width is the same in all runs; a length that an axis of the inputs has is that axis, another one is none."""
    typed = with_observed_types(_model("entries that are not zero"))
    assert typed is not None
    values = {value.name: value for node in typed.ir.graph for value in node.outputs}
    assert values["n"].shape is not None
    assert values["n"].dtype is ir.DataType.FLOAT
    length, width = values["n"].shape
    assert (width, str(length) in ("L", "B")) == (16, False)
    loop = with_observed_types(_model("the result of a loop"))
    assert loop is not None
    (h,) = (value for node in loop.ir.graph for value in node.outputs if value.name == "h")
    assert h.shape is not None
    assert [one if isinstance(one, int) else one.value for one in h.shape] == ["B", 2, "L", 8]


def test_nothing_is_run_where_all_is_known() -> None:
    """No type is missing, so there is no copy."""
    model = _model("the result of a loop")
    typed = with_observed_types(model)
    assert typed is not None
    assert with_observed_types(typed) is None


@pytest.mark.parametrize("name", UNTYPED_MODELS)
def test_judged(name: str) -> None:
    """By the oracle, on runs of their own."""
    records = list(
        verify_file(_model(name), ["ort-cpu"], CheckOptions(sizes={}), target="t", extras=VerifyExtras(axes=False))
    )
    judged = [record for record in records if isinstance(record, AgreementRecord)]
    assert judged
    assert {record.outcome for record in judged} == {Outcome.OK}


@pytest.mark.slow
@pytest.mark.parametrize("name", _FREE)
def test_converted_and_proved(name: str) -> None:
    """The result computes what the file does; one with a scale 2 % off is found."""
    converted = convert_model(_model(name), Form.ATTENTION)
    assert len(converted.converted) == 1
    assert prove_converted(converted, target="t").is_right
    wrong = convert_model(_model(name), Form.ATTENTION)
    for node in wrong.model.ir.graph:
        if node.op_type == "Attention":
            node.attributes["scale"] = ir.AttrFloat32("scale", 0.35355338 * 1.02)
    assert not prove_converted(wrong, target="t").is_right
