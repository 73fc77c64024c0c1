"""Every function body of `Attention` in onnx's node tests is converted and proved, or refused by name, in each form."""

import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.convert.convert_file import prove_converted
from sdpa_onnx.workflows.convert.convert_model import convert_model
from tests.core.attention.test_node_cases import every_case

_CASES = {name: case for name, case in every_case().items() if name.endswith("_expanded")}
_FORMS = (Form.DECOMPOSED, Form.BLOCKED, Form.ORT_MHA, Form.ORT_GQA)
# Onnxruntime has no kernels for them.
_UNSUPPORTED = "bf16"


def _converted(name: str, form: Form) -> str:
    """How one body ended: "right", "refused", "unsupported", or what is wrong."""
    converted = convert_model(load_model(_CASES[name].model), form, again=True)
    if not converted.converted:
        (reason,) = converted.refused.values()
        assert reason
        return "refused"
    proof = prove_converted(converted, target=name)
    if proof.is_right:
        return "right"
    wrong = [record for record in proof.records if record.outcome is not Outcome.OK]
    assert wrong
    if _UNSUPPORTED in name and all("bfloat16" in one.reason or "cannot load" in one.reason for one in wrong):
        return "unsupported"
    return wrong[0].reason


@pytest.mark.slow
@pytest.mark.parametrize("form", _FORMS)
def test_every_body_is_converted_or_refused(form: Form) -> None:
    """None is wrong, and the forms that hold every feature refuse none."""
    found = {name: _converted(name, form) for name in _CASES}
    allowed = {"right", "refused", "unsupported"}
    assert {name: how for name, how in found.items() if how not in allowed} == {}
    assert all(_UNSUPPORTED in name for name, how in found.items() if how == "unsupported")
    if form in (Form.DECOMPOSED, Form.BLOCKED):
        assert "refused" not in found.values()
    assert "right" in found.values()


def test_fixed_sizes_are_written_without_a_branch() -> None:
    """Onnxruntime 1.32 folds a constant If and lost a value that its branch takes from outside."""
    assert _converted("test_attention_3d_gqa_scaled_expanded", Form.BLOCKED) == "right"
    model = convert_model(load_model(_CASES["test_attention_3d_gqa_scaled_expanded"].model), Form.BLOCKED, again=True)
    assert not {"If", "Loop"} & {node.op_type for node in model.model.ir.graph.all_nodes()}
