"""Write onnxruntime's MultiHeadAttention: every mask as a bias, and refusals."""

from dataclasses import replace

import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import Dtype, MaskKind
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.lower.lower import refusal
from tests.graph.lower.canonical import HARD_SPECS, RAGGED, SELF_SIZES, SQUARE, Bare, Trials, all_inputs, drawn
from tests.graph.models import SPECS

_OPERATOR = "MultiHeadAttention"


def _node(model: ir.Model) -> ir.Node:
    (node,) = [node for node in model.graph if node.op_type == _OPERATOR]
    return node


_REFUSED: dict[str, tuple[Bare, str]] = {
    "softcap": (Bare(spec=SPECS["softcap"]), "MultiHeadAttention has no softcap."),
    "float64": (Bare(spec=SPECS["plain"], dtype=Dtype.FLOAT64), "MultiHeadAttention does not support float64."),
    "scores": (
        Bare(spec=SPECS["plain"], scores_mode=QkOutputMode.WEIGHTS),
        "MultiHeadAttention has no scores output like that of the standard operator.",
    ),
}


@pytest.mark.parametrize(("bare", "reason"), _REFUSED.values(), ids=_REFUSED)
def test_what_it_cannot_do(bare: Bare, reason: str) -> None:
    """The refusal names the feature, and lowering raises an error with the same text."""
    assert refusal(bare.build()[1], Form.ORT_MHA, opset=18) == reason
    with pytest.raises(ExportError) as caught:
        bare.written(Form.ORT_MHA)
    assert str(caught.value) == f"Attention 'attention' cannot be written as 'ort-mha': {reason}"


def test_its_own_causality_needs_equal_lengths() -> None:
    """Only if the graph states equal numbers of queries and keys; otherwise a bias replaces causality."""
    spec = SPECS["causal"]
    own = _node(Bare(spec=spec, is_self=True).written(Form.ORT_MHA))
    assert own.attributes["unidirectional"].value == 1
    assert len(own.inputs) == 3
    biased = _node(Bare(spec=spec).written(Form.ORT_MHA))
    assert "unidirectional" not in biased.attributes
    assert biased.inputs[5] is not None


@pytest.mark.parametrize("name", ["causal", "bsh-causal-bool"])
def test_self_attention_is_right(name: str) -> None:
    """With its own causality or a bias, in both layouts."""
    spec = (SPECS | HARD_SPECS)[name]
    bare = Bare(spec=spec, is_self=True)
    assert Trials(bare=bare, model=bare.written(Form.ORT_MHA)).judge(drawn(spec, SELF_SIZES)) == []


def test_scale_of_0_is_not_its_default() -> None:
    """A scale attribute of 0 means 1/sqrt(d), so a scale of 0 is applied to the query."""
    bare = Bare(spec=replace(SPECS["plain"], scale=0.0))
    assert _node(bare.written(Form.ORT_MHA)).attributes["scale"].value == 1.0
    assert Trials(bare=bare, model=bare.written(Form.ORT_MHA)).judge(drawn(bare.spec, [RAGGED])) == []


def test_values_of_another_width_go_in_flat() -> None:
    """4-D keys and values need equal widths; a cache of another width is concatenated before the operator."""
    for spec in (replace(SPECS["past"], v_head_dim=3), replace(SPECS["gqa"], v_head_dim=3)):
        bare = Bare(spec=spec)
        model = bare.written(Form.ORT_MHA)
        assert _node(model).attributes.keys() == {"num_heads"}
        assert Trials(bare=bare, model=model).judge(drawn(spec, [RAGGED])) == []


def test_row_without_a_key_is_zero() -> None:
    """The operator returns NaN for a fully masked row; the form does not."""
    spec = replace(SPECS["bool-mask"], mask=MaskKind.BOOL, layout="bsh")  # type: ignore[arg-type]  # becomes a Layout
    bare = Bare(spec=spec)
    inputs = {name: arrays for name, arrays in all_inputs(spec, [SQUARE]).items() if "masked-rows" in name}
    assert Trials(bare=bare, model=bare.written(Form.ORT_MHA)).judge(inputs) == []
