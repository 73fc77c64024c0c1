"""Convert specs to Attention nodes and back."""

import dataclasses

import onnx
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.attention_node import build_attention_model, find_sites, minimum_opset
from tests.graph.models import RULED, SPECS

_ROUNDS = [
    pytest.param(spec, opset, dtype, id=f"{name}-{opset}-{dtype.value}")
    for name, spec in SPECS.items()
    for opset in range(minimum_opset(spec), 26)
    for dtype in (Dtype.FLOAT32, Dtype.FLOAT16)
]


@pytest.mark.parametrize(("spec", "opset", "dtype"), _ROUNDS)
def test_spec_survives_the_graph(spec: AttentionSpec, opset: int, dtype: Dtype) -> None:
    """A node built from a spec is read as the same spec, from the proto too."""
    model = build_attention_model(spec, opset=opset, dtype=dtype)
    for read in (model, ir.from_proto(ir.to_proto(model))):
        (site,) = find_sites(read)
        assert site.spec == spec
        assert (site.query, site.key, site.value, site.output) == ("Q", "K", "V", "Y")
        assert (site.attn_mask is not None) == (spec.mask in (MaskKind.BOOL, MaskKind.FLOAT))
        assert (site.past_key, site.past_value) == (("past_key", "past_value") if spec.has_past else (None, None))
        assert (site.nonpad_kv_seqlen is not None) == (spec.mask is MaskKind.LENGTHS)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_node_is_valid_onnx(spec: AttentionSpec) -> None:
    """Every built node passes onnx.checker, with shape inference."""
    model = build_attention_model(spec, opset=minimum_opset(spec), dtype=Dtype.FLOAT32)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_rule_comes_back_as_its_number() -> None:
    """A graph keeps the number of a scale, not its rule."""
    model = build_attention_model(RULED, opset=23, dtype=Dtype.FLOAT32)
    assert find_sites(model)[0].spec == dataclasses.replace(RULED, scale=0.125)


@pytest.mark.parametrize(
    ("name", "opset", "least"),
    [("plain", 22, 23), ("plain", 26, 23), ("lengths", 23, 24), ("window", 24, 25), ("much", 24, 25)],
)
def test_opset_that_cannot_express_it(name: str, opset: int, least: int) -> None:
    """An opset below the needed one, or above 25, is refused; the error names the supported ones."""
    with pytest.raises(ExportError) as caught:
        build_attention_model(SPECS[name], opset=opset, dtype=Dtype.FLOAT32)
    assert str(caught.value) == (
        f"The Attention operator of opset {opset} cannot express this attention. Use an opset from {least} to 25."
    )


def test_unknown_widths_are_left_out() -> None:
    """A node whose head count is unknown has no site."""
    model = build_attention_model(SPECS["plain"], opset=23, dtype=Dtype.FLOAT32)
    model.graph.inputs[0].shape = ir.Shape(["batch_size", "heads", "q_seq_len", 8])
    assert find_sites(model) == ()


def test_impossible_heads_are_left_out() -> None:
    """A node whose heads do not divide the width has no site, and raises no error."""
    model = build_attention_model(SPECS["plain"], opset=23, dtype=Dtype.FLOAT32)
    model.graph.inputs[1].shape = ir.Shape(["batch_size", 3, "kv_seq_len", 8])
    assert find_sites(model) == ()


def test_rank_2_inputs_are_left_out() -> None:
    """A node whose inputs have rank 2 has no site, and raises no error."""
    model = build_attention_model(SPECS["plain"], opset=23, dtype=Dtype.FLOAT32)
    for value in model.graph.inputs:
        value.shape = ir.Shape(["q_seq_len", 8])
    assert find_sites(model) == ()


@pytest.mark.parametrize(
    "attribute",
    [ir.AttrFloat32("is_causal", 1.0), ir.AttrString("scale", "big"), ir.AttrInt64("softcap", 2)],
    ids=lambda attribute: attribute.name,
)
def test_attribute_of_a_wrong_type_is_left_out(attribute: ir.Attr) -> None:
    """A node with an attribute of the wrong type has no site, and raises no error."""
    model = build_attention_model(SPECS["plain"], opset=23, dtype=Dtype.FLOAT32)
    model.graph[0].attributes[attribute.name] = attribute
    assert find_sites(model) == ()
