"""Inputs of a graph at chosen sizes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.errors import ModelError, PlanError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import bare_case, draw_feeds, probe_steps, resolve_shape
from sdpa_onnx.workflows.check.given_arrays import read_inputs
from tests.graph.models import SPECS, bare

_SIZES = {"batch_size": 2, "q_seq_len": 3, "kv_seq_len": 5, "past_seq_len": 4, "total_seq_len": 9}


def _passing(inputs: dict[str, tuple[int, list[int | str | None] | None]]) -> OnnxModel:
    """A graph that hands its inputs through, each of a type and shape."""
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    outputs = [helper.make_tensor_value_info(f"{name}_out", kind, shape) for name, (kind, shape) in inputs.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    graph = helper.make_graph(nodes, "test", values, outputs)
    return load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10))


def _of(shape: list[int | str | None] | None, kind: int = TensorProto.FLOAT) -> OnnxModel:
    return _passing({"x": (kind, shape)})


@pytest.mark.parametrize(
    ("axis", "size"),
    [
        ("q_seq_len", 3),
        ("past_seq_len + kv_seq_len", 9),
        ("past_seq_len+kv_seq_len", 9),
        ("kv_seq_len + 1", 6),
        ("kv_seq_len - 1", 4),
        ("past_seq_len + kv_seq_len - q_seq_len", 6),
        ("2*kv_seq_len", 10),
        ("8 - kv_seq_len", 3),
        ("kv_seq_len // 2", 2),
        ("q_seq_len * (past_seq_len + 1)", 15),
        ("Max(q_seq_len, kv_seq_len)", 5),
        (7, 7),
    ],
)
def test_axis_that_is_arithmetic(axis: int | str, size: int) -> None:
    """A number, a name, and whole-number arithmetic of both have the size that they say."""
    model = _of(["batch_size", axis])
    assert resolve_shape(model.input_value("x"), _SIZES) == (2, size)


def test_axis_that_would_be_negative_is_refused() -> None:
    """A difference below 0 names the axis and the sizes."""
    with pytest.raises(ModelError) as caught:
        resolve_shape(_of(["batch_size", "4 - kv_seq_len"]).input_value("x"), _SIZES)
    assert str(caught.value) == "Axis '4 - kv_seq_len' of input 'x' would have the size -1 at kv_seq_len 5."


def test_total_is_past_and_new() -> None:
    """`total_seq_len` is no size of its own where the parts are known."""
    model = _of(["batch_size", "total_seq_len"])
    assert resolve_shape(model.input_value("x"), {"batch_size": 1, "past_seq_len": 4, "kv_seq_len": 5}) == (1, 9)


def test_axis_names_in_order() -> None:
    """Each name once, in order of appearance; a sum gives its parts, a number nothing."""
    model = _passing(
        {
            "a": (TensorProto.FLOAT, ["batch_size", 3, "q_seq_len"]),
            "b": (TensorProto.FLOAT, ["batch_size", "past_seq_len + kv_seq_len", "total_seq_len"]),
        }
    )
    assert model.facts.axes == ("batch_size", "q_seq_len", "past_seq_len", "kv_seq_len")


def test_axis_without_a_name() -> None:
    """An axis that is neither a number nor a name is told with its input."""
    with pytest.raises(ModelError) as caught:
        _ = _of(["batch_size", None]).facts.axes
    assert str(caught.value) == "Input 'x' has an axis without a name. Name its dynamic axes."


def test_axis_without_a_size() -> None:
    """A name that has no size is told with what is known."""
    with pytest.raises(ModelError) as caught:
        resolve_shape(_of(["batch_size", "frames"]).input_value("x"), {"batch_size": 2, "q_seq_len": 3})
    assert str(caught.value) == "Axis 'frames' of input 'x' has no size. Known: batch_size, q_seq_len."


def test_input_without_a_shape() -> None:
    """A graph input of unknown rank cannot be fed."""
    with pytest.raises(ModelError) as caught:
        draw_feeds(_of(None), _SIZES, spread=1.0, seed=0)
    assert str(caught.value) == "Input 'x' has no shape. Run shape inference on the model first."


def test_kinds_of_inputs() -> None:
    """Floats are N(0, gain^2), integers 0 or 1, truth values true at position 0; the same seed gives the same."""
    model = _passing(
        {
            "wide": (TensorProto.DOUBLE, [100, "q_seq_len"]),
            "half": (TensorProto.FLOAT16, [100, "q_seq_len"]),
            "ids": (TensorProto.INT64, [100, "q_seq_len"]),
            "mask": (TensorProto.BOOL, [100, "q_seq_len"]),
        }
    )
    first, same, other = (draw_feeds(model, _SIZES, spread=1.0, seed=seed, gain=3.0) for seed in (0, 0, 1))
    assert [array.dtype.name for array in first.values()] == ["float64", "float16", "int64", "bool"]
    assert {array.shape for array in first.values()} == {(100, 3)}
    assert first["wide"].std() == pytest.approx(3.0, rel=0.15)
    assert set(np.unique(first["ids"])) == {0, 1}
    assert first["mask"][:, 0].all()
    assert 0.6 < first["mask"][:, 1:].mean() < 0.9
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert not np.array_equal(first["wide"], other["wide"])


def test_type_that_cannot_be_drawn() -> None:
    """Texts are no input of attention."""
    with pytest.raises(ModelError) as caught:
        draw_feeds(_of([2], TensorProto.STRING), {}, spread=1.0, seed=0)
    assert str(caught.value) == "Input 'x' is of type STRING, for which no inputs can be drawn."


def test_floating_type_that_is_not_supported() -> None:
    """An 8-bit float is refused, not taken for float32."""
    with pytest.raises(ModelError) as caught:
        _ = _of([2], TensorProto.FLOAT8E4M3FN).facts.dtype
    assert str(caught.value) == "Input 'x' is of type FLOAT8E4M3FN, which is not supported."


@pytest.mark.parametrize("name", SPECS)
def test_bare_attention_gets_its_own_inputs(name: str) -> None:
    """Every spec's inputs are drawn at the sizes asked for, and the case says the same."""
    spec = SPECS[name]
    model = bare(spec, opset=25)
    sizes = {axis: _SIZES[axis] for axis in model.facts.axes}
    feeds = draw_feeds(model, sizes, spread=1.0, seed=0)
    assert tuple(feeds) == model.input_names
    for key, array in feeds.items():
        assert array.shape == resolve_shape(model.input_value(key), sizes)
    case = bare_case(model, sizes)
    assert case is not None
    assert (case.spec, case.batch_size, case.q_seq_len, case.kv_seq_len) == (spec, 2, 3, 5)
    assert case.past_seq_len == (4 if spec.has_past else 0)


@pytest.mark.parametrize("kind", [MaskKind.BOOL, MaskKind.FLOAT])
@pytest.mark.parametrize(
    "shape",
    [
        ["q_seq_len", "kv_seq_len"],
        [1, 1, "q_seq_len", "kv_seq_len"],
        ["batch_size", 1, 1, "kv_seq_len"],
        ["batch_size", 2, "q_seq_len", "kv_seq_len"],
    ],
    ids=["rank-2", "one-for-all", "padding", "per-head"],
)
def test_mask_that_broadcasts(kind: MaskKind, shape: list[int | str]) -> None:
    """A mask is drawn in the shape that the graph declares, whatever it broadcasts over."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=kind)
    proto = onnx.load_from_string(bare(spec).to_bytes())
    element = TensorProto.BOOL if kind is MaskKind.BOOL else TensorProto.FLOAT
    proto.graph.input[3].CopyFrom(helper.make_tensor_value_info("attn_mask", element, shape))
    model = load_model(proto)
    feeds = draw_feeds(model, _SIZES, spread=1.0, seed=0)
    expected = tuple(_SIZES[size] if isinstance(size, str) else size for size in shape)
    assert feeds["attn_mask"].shape == expected
    assert feeds["attn_mask"].dtype.kind == ("b" if kind is MaskKind.BOOL else "f")
    assert feeds["attn_mask"].flags.c_contiguous


@pytest.mark.parametrize("kind", [MaskKind.BOOL, MaskKind.FLOAT])
@pytest.mark.parametrize(
    ("spec_mask", "shape"),
    [
        ("mask", ["batch_size", 2, "q_seq_len", "kv_seq_len"]),
        ("mask", [1, 2, "q_seq_len", "kv_seq_len"]),
        ("mask", [2, "q_seq_len", "kv_seq_len"]),
        ("mask", ["batch_size", 2, 1, "kv_seq_len"]),
        ("mask", [2, 1, "kv_seq_len"]),
        ("lengths", ["batch_size", 2, "q_seq_len", "kv_seq_len"]),
    ],
    ids=["four", "one-sample", "rank-3", "one-query", "slopes", "with-lengths"],
)
def test_mask_differs_along_every_axis(kind: MaskKind, spec_mask: str, shape: list[int | str]) -> None:
    """In the ladder and in every probe with a random mask, no entry of an axis has the mask of the next one."""
    lengths = spec_mask == "lengths"
    spec = AttentionSpec(
        q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.LENGTHS if lengths else kind, is_causal=not lengths
    )
    proto = onnx.load_from_string(bare(spec, opset=24).to_bytes())
    element = TensorProto.BOOL if kind is MaskKind.BOOL else TensorProto.FLOAT
    mask = helper.make_tensor_value_info("attn_mask", element, shape)
    if lengths:
        proto.graph.input.append(mask)
        proto.graph.node[0].input[3] = "attn_mask"
    else:
        proto.graph.input[3].CopyFrom(mask)
    del proto.metadata_props[:]
    model = load_model(proto)
    sizes = {"batch_size": 2, "q_seq_len": 5, "kv_seq_len": 31}
    drawn = {"ladder": draw_feeds(model, sizes, spread=1.0, seed=0)}
    drawn |= {step.word: step.feeds for step in probe_steps(model, CheckOptions(sizes=sizes))}
    skipped = {"probe masked-rows", "probe lowest-mask"}  # these hide whole rows
    for word, feeds in drawn.items():
        array = feeds["attn_mask"]
        for axis, size in enumerate(array.shape[:-1]):
            rows = np.moveaxis(array, axis, 0).reshape(size, -1)
            if word not in skipped:
                assert size == 1 or len(np.unique(rows, axis=0)) == size, (word, axis)


def test_bare_inputs_have_the_spread_asked_for() -> None:
    """The logits of a drawn attention have the standard deviation asked for."""
    model = bare(AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=64))
    sizes = {"batch_size": 1, "q_seq_len": 64, "kv_seq_len": 512}
    for spread in (0.3, 1.0, 4.0):
        feeds = draw_feeds(model, sizes, spread=spread, seed=0)
        logits = feeds["Q"].astype(np.float64)[0, 0] @ feeds["K"].astype(np.float64)[0, 0].T / 8
        assert logits.std() == pytest.approx(spread, rel=0.1)


def test_module_is_no_bare_attention(module_model: OnnxModel) -> None:
    """A module's attention is inside: the graph's inputs are not its own."""
    assert bare_case(module_model, {"batch_size": 2, "x_seq_len": 3}) is None


def test_type_of_a_model() -> None:
    """The first floating-point input decides; ids alone are taken for float32."""
    assert bare(dtype=Dtype.BFLOAT16).facts.dtype is Dtype.BFLOAT16
    assert _of([2], TensorProto.INT64).facts.dtype is Dtype.FLOAT32


def test_read_inputs_drops_what_is_no_input(tmp_path: Path) -> None:
    """Arrays come back by name and in the order of the graph; one more in the file does no harm."""
    arrays = {name: np.full((1, 4, 2, 8), number, np.float32) for number, name in enumerate(["V", "extra", "K", "Q"])}
    np.savez(tmp_path / "i.npz", **arrays)
    found = read_inputs(tmp_path / "i.npz", bare())
    assert list(found) == ["Q", "K", "V"]
    assert [float(array.flat[0]) for array in found.values()] == [3.0, 2.0, 0.0]


def test_read_inputs_that_lack_one(tmp_path: Path) -> None:
    """A file without an input is told with what it has."""
    np.savez(tmp_path / "i.npz", Q=np.ones(3), K=np.ones(3))
    with pytest.raises(PlanError) as caught:
        read_inputs(tmp_path / "i.npz", bare())
    assert str(caught.value) == (f"{tmp_path / 'i.npz'} lacks the input 'V'; it has Q, K. Name arrays as the inputs.")


def test_a_single_bool_is_drawn() -> None:
    """It is a choice, and no mask with a first position."""
    (drawn,) = draw_feeds(_of([], TensorProto.BOOL), {}, spread=1.0, seed=0).values()
    assert (drawn.shape, drawn.dtype) == ((), np.bool_)
