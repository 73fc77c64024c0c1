"""GroupQueryAttention gets the last visible key of each sample, so that its kernel skips padding on the right."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.forms import Form, LowerOptions, Workaround
from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from tests.graph.lower.canonical import Bare, Size, Trials, run_once

_LOWEST = float(np.finfo(np.float32).min)
_QUERIES = 6
_SIZE = Size(batch=4, queries=_QUERIES, keys=_QUERIES)
_PLAIN = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8)

# The kernel loses a query all of whose keys have the lowest number: score and bias overflow.
_CLAMPED = LowerOptions(workarounds=frozenset({Workaround.FINITE_MASK}))

Bools = NDArray[np.bool_]


def _visible(name: str) -> Bools:
    """(4 samples, 6 keys)."""
    places, counts = np.arange(_QUERIES), np.array([[6], [3], [1], [4]])
    match name:
        case "right":
            return np.asarray(places < counts)
        case "left":
            return np.asarray(places >= _QUERIES - counts)
        case "holes":
            return np.asarray((places < counts) & (places != 1))
        case "an empty sample":
            return np.asarray((places < counts) & (counts != 1))
        case _:
            return np.ones((4, _QUERIES), bool)


PADDINGS = ("right", "left", "holes", "an empty sample", "none")
# Name: spec, axes of the mask, number that hides.
MASKS: dict[str, tuple[AttentionSpec, tuple[int | str, ...], float]] = {
    "boolean row": (
        replace(_PLAIN, mask=MaskKind.BOOL, is_causal=True),
        ("batch_size", 1, 1, "q_seq_len"),
        0.0,
    ),
    "boolean, every query": (replace(_PLAIN, mask=MaskKind.BOOL), ("batch_size", 1, "q_seq_len", "q_seq_len"), 0.0),
    "float row": (replace(_PLAIN, mask=MaskKind.FLOAT, is_causal=True), ("batch_size", 1, 1, "q_seq_len"), -np.inf),
    "float, every head": (
        replace(_PLAIN, mask=MaskKind.FLOAT),
        ("batch_size", 4, "q_seq_len", "q_seq_len"),
        -np.inf,
    ),
    "lowest number": (
        replace(_PLAIN, mask=MaskKind.FLOAT, is_causal=True),
        ("batch_size", 1, "q_seq_len", "q_seq_len"),
        _LOWEST,
    ),
    "window": (
        replace(_PLAIN, mask=MaskKind.BOOL, is_causal=True, left_window=2),
        ("batch_size", 1, 1, "q_seq_len"),
        0.0,
    ),
}


def _bare(name: str) -> Bare:
    spec, axes, _ = MASKS[name]
    return Bare(spec=spec, is_self=True, mask_axes=axes)


def _inputs(name: str, padding: str) -> AttentionInputs:
    spec, axes, hidden = MASKS[name]
    sizes = {"batch_size": 4, "q_seq_len": _QUERIES}
    shape = tuple(size if isinstance(size, int) else sizes[size] for size in axes)
    visible = np.broadcast_to(_visible(padding)[:, None, None, :], shape)
    inputs = draw_inputs(_SIZE.case(spec, Dtype.FLOAT32))
    if spec.mask is MaskKind.BOOL:
        return replace(inputs, attn_mask=visible.copy())
    biases = np.random.default_rng(0).standard_normal(shape)
    return replace(inputs, attn_mask=np.where(visible, biases, hidden).astype(np.float32))


def _with_last_keys(model: ir.Model) -> ir.Model:
    """The graph with its `seqlens_k` as an output."""
    (node,) = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    counts = node.inputs[5]
    assert counts is not None
    counts.name, counts.shape = "seqlens_k", ir.Shape(["batch_size"])
    model.graph.outputs.append(counts)
    return model


@pytest.mark.parametrize("name", MASKS)
def test_every_padding_is_right(name: str) -> None:
    """Right, left and scattered padding and a sample without any key agree with the oracle."""
    bare = _bare(name)
    trials = Trials(bare=bare, model=bare.written(Form.ORT_GQA, _CLAMPED))
    assert trials.judge({padding: _inputs(name, padding) for padding in PADDINGS}) == []


_LAST = {
    "right": [5, 2, 0, 3],
    "left": [5, 5, 5, 5],
    "holes": [5, 2, 0, 3],
    "an empty sample": [5, 2, 0, 3],
    "none": [5, 5, 5, 5],
}


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", ["boolean row", "boolean, every query", "float row", "float, every head", "window"])
def test_last_key_of_each_sample(name: str, padding: str) -> None:
    """The kernel reads the keys up to the last one that a query sees; left padding stays in the bias."""
    model = _with_last_keys(_bare(name).written(Form.ORT_GQA))
    assert run_once(model, _inputs(name, padding))["seqlens_k"].tolist() == _LAST[padding]


def test_lowest_numbers_hide_only_where_every_query_sees_a_key() -> None:
    """A query whose keys are all hidden by the lowest number averages over all of them, the last ones too."""
    model = _with_last_keys(_bare("lowest number").written(Form.ORT_GQA))
    last = {padding: run_once(model, _inputs("lowest number", padding))["seqlens_k"].tolist() for padding in PADDINGS}
    # With causality, the first queries of a sample with left padding or a hole at the start see no key.
    assert last["right"] == [5, 2, 0, 3]
    assert last["left"] == [5, 5, 5, 5]
    assert last["holes"] == [5, 2, 0, 3]
    assert last["an empty sample"] == [5, 2, 5, 3]


def test_nan_behind_the_last_key_is_kept() -> None:
    """A NaN in the mask counts as visible: it is no padding, and stays in the output."""
    model = _with_last_keys(_bare("float, every head").written(Form.ORT_GQA))
    inputs = _inputs("float, every head", "right")
    assert inputs.attn_mask is not None
    inputs.attn_mask[1, :, 2, 4] = np.nan
    found = run_once(model, inputs)
    assert found["seqlens_k"].tolist() == [5, 4, 0, 3]
    assert np.isnan(found["Y"][1, :, 2]).all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_lengths_need_no_bias(is_causal: bool) -> None:  # a column of the table
    """Lengths of the samples alone are the kernel's own; the causal diagonal that they shift stays in the bias."""
    spec = replace(_PLAIN, mask=MaskKind.LENGTHS, is_causal=is_causal)
    bare = Bare(spec=spec, is_self=True)
    model = bare.written(Form.ORT_GQA)
    (node,) = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    assert (len(node.inputs) > 10) == is_causal
    inputs = draw_inputs(_SIZE.case(spec, Dtype.FLOAT32))
    fed = {str(one): replace(inputs, nonpad_kv_seqlen=np.array(one)) for one in ([6, 3, 1, 4], [6, 0, 2, 5])}
    assert Trials(bare=bare, model=model).judge(fed) == []
    last = run_once(_with_last_keys(model), fed["[6, 0, 2, 5]"])["seqlens_k"].tolist()
    assert last == [5, 0, 1, 4]


@pytest.mark.parametrize("name", ["past", "one mask for all samples"])
def test_where_the_count_is_that_of_all_keys(name: str) -> None:
    """With a cache the count is the place of the new keys; one mask for all samples has no padding of a sample."""
    spec = replace(_PLAIN, mask=MaskKind.BOOL, is_causal=True, has_past=name == "past")
    bare = Bare(spec=spec, is_self=True, mask_axes=None if spec.has_past else (1, 1, "q_seq_len", "q_seq_len"))
    (node,) = [one for one in bare.written(Form.ORT_GQA).graph if one.op_type == "GroupQueryAttention"]
    value, kinds = node.inputs[5], []
    while value is not None and (made := value.producer()) is not None:
        kinds.append(made.op_type)
        value = made.inputs[0] if made.inputs else None
    assert "Sub" in kinds
    assert "ReduceMax" not in kinds


def _shifted(model: ir.Model, operator: str) -> None:
    """A node of the last key computes something else."""
    (node,) = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    counts = node.inputs[5]
    assert counts is not None
    expand = counts.producer()
    assert expand is not None
    one = ir.node("Constant", [], attributes={"value": ir.tensor(np.array([1], np.int32))})
    moved = ir.node(operator, [counts, one.outputs[0]])
    zero = ir.node("Constant", [], attributes={"value": ir.tensor(np.array([0], np.int32))})
    kept = ir.node("Max", [moved.outputs[0], zero.outputs[0]])
    model.graph.insert_after(expand, [one, zero, moved, kept])
    node.replace_input_with(5, kept.outputs[0])


def test_one_key_less_is_found() -> None:
    """A count that ends one key early is detected."""
    bare = _bare("boolean row")
    model = bare.written(Form.ORT_GQA)
    _shifted(model, "Sub")
    assert Trials(bare=bare, model=model).judge({"right": _inputs("boolean row", "right")}) != []
