"""Export of a bare spec: names, forms, opsets, and agreement with the oracle."""

import onnx
import onnxruntime as ort
import pytest
import torch

from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.torch_export.exporter import export_spec
from tests.torch_export.specs import SIZES, SPECS, case_of, error_of

# As in test_modules: 6e-7 measured; a missing feature gives 1e-2 and more.
_LIMIT = 5e-6

_QUICK = [
    ("plain", 23, "attention"),
    ("past-causal-bool", 18, "decomposed"),
    ("past-causal", 23, "attention"),
    ("lengths-window", 24, "attention"),
    ("window", 25, "attention"),
    ("softcap", 24, "attention"),
    ("bsh-past", 18, "decomposed"),
    ("causal", 24, "decomposed"),
]
_ALL = [
    pytest.param(
        *(name, opset, form),
        id=f"{name}-{opset}-{form}",
        marks=() if (name, opset, form) in _QUICK else pytest.mark.slow,
    )
    for name in SPECS
    for opset, form in (
        *((18, "decomposed"), (22, "decomposed"), (23, "attention"), (24, "attention"), (25, "attention")),
        *((24, "decomposed"), (25, "decomposed")),
    )
]


def _worst_error(model: OnnxModel, spec: AttentionSpec) -> float:
    session = ort.InferenceSession(model.tapped().to_bytes(), providers=["CPUExecutionProvider"])
    errors = []
    for size in SIZES:
        inputs = draw_inputs(case_of(spec, size), spread=2.0, seed=3)
        outputs = dict(zip(model.output_names, session.run(None, inputs.onnx_feeds()), strict=False))
        errors.append(error_of(spec, inputs, outputs["Y"]))
    return max(errors)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "opset", "form"), _ALL)
def test_exported_spec_agrees_with_the_oracle(name: str, opset: int, form: str) -> None:
    """Every spec, form and opset is correct at sizes other than the sample's, and has the operator's names."""
    spec = SPECS[name]
    model = export_spec(spec, opset=opset, form=form)  # type: ignore[arg-type]  # one of the two forms
    assert _worst_error(model, spec) < _LIMIT
    assert model.opset == opset
    assert model.node_counts().get("Attention", 0) == (form == "attention")
    case = case_of(spec, (2, 3, 5, 4))
    assert model.input_names == tuple(draw_inputs(case).onnx_feeds())
    assert model.output_names == (("Y", "present_key", "present_value") if spec.has_past else ("Y",))
    (site,) = model.sites
    assert site.spec == spec
    assert site.output == "Y"
    onnx.checker.check_model(onnx.load_from_string(model.to_bytes()))


def test_dims_are_named_like_the_operator() -> None:
    """A spec traced by torch has the axis names of the one-node model, including total_seq_len."""
    spec = SPECS["past-causal-bool"]
    model = export_spec(spec, opset=18, form="decomposed")
    values = (*model.ir.graph.inputs, *model.ir.graph.outputs)
    assert {value.name: [str(dim) for dim in value.shape or ()] for value in values} == {
        "Q": ["batch_size", "4", "q_seq_len", "8"],
        "K": ["batch_size", "2", "kv_seq_len", "8"],
        "V": ["batch_size", "2", "kv_seq_len", "8"],
        "attn_mask": ["batch_size", "1", "q_seq_len", "total_seq_len"],
        "past_key": ["batch_size", "2", "past_seq_len", "8"],
        "past_value": ["batch_size", "2", "past_seq_len", "8"],
        "Y": ["batch_size", "4", "q_seq_len", "8"],
        "present_key": ["batch_size", "2", "total_seq_len", "8"],
        "present_value": ["batch_size", "2", "total_seq_len", "8"],
    }


def test_source_is_the_module_that_computes_the_spec() -> None:
    """The model keeps the torch module for the baseline, and it computes the same."""
    spec = SPECS["bool-causal"]
    model = export_spec(spec)
    inputs = draw_inputs(case_of(spec, (2, 3, 5, 0)))
    assert isinstance(model.source, torch.nn.Module)
    output = model.source(**{name: torch.from_numpy(array) for name, array in inputs.onnx_feeds().items()})
    assert error_of(spec, inputs, output.numpy()) < _LIMIT


@pytest.mark.parametrize(("dtype", "opset"), [(Dtype.FLOAT16, 23), (Dtype.FLOAT64, 18), (Dtype.BFLOAT16, 23)])
def test_dtype_of_the_graph(dtype: Dtype, opset: int) -> None:
    """Inputs and outputs have the requested dtype."""
    model = export_spec(SPECS["plain"], opset=opset, form="attention" if opset > 22 else "decomposed", dtype=dtype)
    types = {str(value.dtype) for value in (*model.ir.graph.inputs, *model.ir.graph.outputs)}
    assert types == {{"float64": "DOUBLE"}.get(dtype.value, dtype.value.upper())}


@pytest.mark.slow
def test_two_exports_of_a_spec_are_byte_equal() -> None:
    """Exporting a spec twice gives the same bytes."""
    spec = SPECS["window"]
    assert export_spec(spec, opset=23).to_bytes() == export_spec(spec, opset=23).to_bytes()


def test_a_forgotten_feature_is_seen() -> None:
    """The limit distinguishes a plain export from a causal one."""
    assert _worst_error(export_spec(SPECS["plain"]), SPECS["causal"]) > 100 * _LIMIT


@pytest.mark.parametrize("opset", [17, 26])
def test_opset_out_of_range(opset: int) -> None:
    """Opsets that torch mislabels or cannot write are refused; the error names the range."""
    with pytest.raises(ExportError) as caught:
        export_spec(SPECS["plain"], opset=opset)
    assert str(caught.value) == f"Opset {opset} cannot be exported. Use an opset from 18 to 25."


def test_attention_form_below_its_opset() -> None:
    """The Attention operator exists from opset 23 on."""
    with pytest.raises(ExportError) as caught:
        export_spec(SPECS["plain"], opset=22)
    assert str(caught.value) == (
        "Form 'attention' needs opset 23 to 25, got opset 22. Use form 'decomposed', or a higher opset."
    )
