"""Models of one operator: what is fixed, what is open, and that they run."""

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind, ScaleRule
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.attention_node import minimum_opset
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.one_node import OneNode, build_one_node_model
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from tests.graph.models import SPECS

_ROWS = np.zeros((2, 3, 5, 4), np.float32)
_QKV = {"Q": _ROWS, "K": _ROWS, "V": _ROWS}
_FLAT = np.zeros((2, 5, 12), np.float32)


def shape(model: ir.Model, name: str) -> str:
    """Shape of a value of the graph as text."""
    values = [*model.graph.inputs, *model.graph.outputs]
    return str(next(value.shape for value in values if value.name == name))


def test_sizes_are_fixed_or_open_as_asked() -> None:
    """Heads and widths are numbers either way; batch and lengths are names in an open model."""
    assert shape(build_one_node_model(OneNode(), _QKV).ir, "Q") == "[2,3,5,4]"
    assert shape(build_one_node_model(OneNode(), _QKV, dynamic=True).ir, "Q") == "[Q_0,3,Q_2,4]"


def test_a_flat_layout_keeps_its_width() -> None:
    """The last axis of a 3-D input holds the heads."""
    node = OneNode(attributes={"q_num_heads": 3, "kv_num_heads": 3})
    model = build_one_node_model(node, {"Q": _FLAT, "K": _FLAT, "V": _FLAT}, dynamic=True)
    assert shape(model.ir, "K") == "[K_0,K_1,12]"
    assert model.sites[0].spec.head_dim == 4


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        ((5, 5), "[attn_mask_0,attn_mask_1]"),
        ((2, 1, 1, 5), "[attn_mask_0,1,1,attn_mask_3]"),
        ((2, 3, 5, 5), "[attn_mask_0,3,attn_mask_2,attn_mask_3]"),
        ((1, 5), "[1,attn_mask_1]"),
    ],
)
def test_an_axis_that_is_broadcast_stays_one(mask: tuple[int, ...], text: str) -> None:
    """A mask of one row means one row at every length."""
    feeds = {**_QKV, "attn_mask": np.ones(mask, bool)}
    model = build_one_node_model(OneNode(inputs=("Q", "K", "V", "attn_mask")), feeds, dynamic=True)
    assert shape(model.ir, "attn_mask") == text


def test_absent_and_left_out_values_have_no_name() -> None:
    """Optional inputs in the middle and outputs in the middle keep their place."""
    node = OneNode(inputs=("Q", "K", "V", "", "past", "old"), outputs=("Y", "", "", "scores"))
    feeds = {**_QKV, "past": _ROWS, "old": _ROWS}
    model = build_one_node_model(node, feeds)
    (written,) = ir.to_proto(model.ir).graph.node
    assert list(written.input) == ["Q", "K", "V", "", "past", "old"]
    assert list(written.output) == ["Y", "", "", "scores"]
    assert model.output_names == ("Y", "scores")
    assert (model.sites[0].past_key, model.sites[0].past_value) == ("past", "old")


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "open"])
def test_the_scores_over_a_cache_run(*, dynamic: bool) -> None:
    """onnx infers a wrong length for them; ours is left open, so every runtime loads the model."""
    node = OneNode(inputs=("Q", "K", "V", "", "past", "old"), outputs=("Y", "k", "v", "scores"))
    feeds = {**_QKV, "past": _ROWS, "old": _ROWS}
    model = build_one_node_model(node, feeds, dynamic=dynamic)
    with get_runtime("ort-cpu").load(model, LoadOptions()) as session:
        assert session.run(feeds)["scores"].shape == (2, 3, 5, 10)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "open"])
def test_a_node_is_valid_and_its_site_is_the_spec(name: str, *, dynamic: bool) -> None:
    """What was asked is read back from the graph, which onnx's own checker accepts."""
    spec = SPECS[name]
    case = AttentionCase(spec=spec, batch_size=2, q_seq_len=3, kv_seq_len=5, past_seq_len=4 if spec.has_past else 0)
    feeds = draw_inputs(case).onnx_feeds()
    attributes = {
        "is_causal": int(spec.is_causal),
        "softcap": float(spec.softcap),
        "left_window_size": spec.left_window,
        "right_window_size": spec.right_window,
        "scale": None if spec.scale is ScaleRule.INVERSE_SQRT else spec.scale_value,
        "q_num_heads": spec.q_num_heads if feeds["Q"].ndim == 3 else None,
        "kv_num_heads": spec.kv_num_heads if feeds["Q"].ndim == 3 else None,
    }
    opset = minimum_opset(spec)
    kept = {
        name: value for name, value in attributes.items() if value is not None and (opset == 25 or "window" not in name)
    }
    names = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
    node = OneNode(opset=opset, attributes=kept, inputs=tuple(name if name in feeds else "" for name in names))
    model = build_one_node_model(node, feeds, dynamic=dynamic)
    onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)
    assert model.sites[0].spec == spec


@pytest.mark.parametrize("dtype", list(Dtype))
def test_outputs_have_the_type_of_their_input(dtype: Dtype) -> None:
    """Each element type travels from query to output, bfloat16 too."""
    kind = ml_dtypes.bfloat16 if dtype is Dtype.BFLOAT16 else np.dtype(dtype.value)
    feeds = {name: array.astype(kind) for name, array in _QKV.items()}
    model = build_one_node_model(OneNode(outputs=("Y", "present_key", "present_value")), feeds)
    assert {value.dtype.numpy().name for value in model.ir.graph.outputs if value.dtype} == {dtype.value}


def test_the_value_decides_the_type_of_its_cache() -> None:
    """The operator lets values have a type of their own."""
    feeds = {**_QKV, "V": _ROWS.astype(np.float16)}
    model = build_one_node_model(OneNode(outputs=("Y", "present_key", "present_value")), feeds)
    assert [value.dtype for value in model.ir.graph.outputs] == [
        ir.DataType.FLOAT,
        ir.DataType.FLOAT,
        ir.DataType.FLOAT16,
    ]


def test_another_domain_is_imported_and_runs() -> None:
    """A contrib operator has its domain at version 1 and no site; held weights are no input."""
    node = OneNode(
        op_type="Attention", domain=CONTRIB_DOMAIN, opset=18, attributes={"num_heads": 2}, inputs=("x", "weights")
    )
    rows = np.ones((1, 3, 12), np.float32)
    model = build_one_node_model(node, {"x": rows}, dynamic=True, constants={"weights": np.eye(12, dtype=np.float32)})
    assert model.ir.opset_imports == {"": 18, CONTRIB_DOMAIN: 1}
    assert model.ir.ir_version == 8
    assert (model.input_names, model.sites) == (("x",), ())
    onnx.checker.check_model(ir.to_proto(model.ir))
    with get_runtime("ort-cpu").load(model, LoadOptions()) as session:
        assert session.run({"x": rows})["Y"].shape == (1, 3, 4)


def test_an_input_without_an_array_is_told() -> None:
    """The missing name and the operator stand in the message."""
    with pytest.raises(ModelError) as caught:
        build_one_node_model(OneNode(), {"Q": _ROWS, "K": _ROWS})
    assert str(caught.value) == "There is no array for input 'V' of Attention."


def test_sizes_that_do_not_fit_are_the_runtimes_to_refuse() -> None:
    """A conformance case may ask for what is illegal: the model is written all the same."""
    feeds = {**_QKV, "K": np.zeros((2, 3, 5, 7), np.float32)}
    model = build_one_node_model(OneNode(), feeds)
    assert shape(model.ir, "K") == "[2,3,5,7]"


def test_a_spec_without_mask_has_none() -> None:
    """The site follows the inputs that are there."""
    model = build_one_node_model(OneNode(), _QKV)
    assert model.sites[0].spec == AttentionSpec(q_num_heads=3, kv_num_heads=3, head_dim=4, mask=MaskKind.NONE)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "open"])
def test_a_cache_given_back_has_a_rank(*, dynamic: bool) -> None:
    """onnx infers no shape for it with open axes, and its checker refuses an output without one."""
    node = OneNode(inputs=("Q", "K", "V", "", "past", "old"), outputs=("Y", "k", "v"))
    model = build_one_node_model(node, {**_QKV, "past": _ROWS, "old": _ROWS}, dynamic=dynamic)
    onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)
    shapes = {value.name: value.shape for value in model.ir.graph.outputs}
    assert [len(shapes[name]) for name in ("k", "v")] == [4, 4]
