"""The standard operator: every field of its text is read, and what is malformed or unknown says so."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES, draw_inputs
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype, MaskKind
from sdpa_onnx.core.judge.qk_agreement import expect_qk, judge_qk
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.attention_node import attributes_of, minimum_opset
from sdpa_onnx.graph.lift import standard
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.graph.one_node import OneNode, build_one_node_model
from tests.graph.lift.taps import Array, cases, dims, random, read_one, tap
from tests.graph.models import SPECS, bare, inner_attention

_PLAIN: dict[str, Array] = {"Q": random(2, 3, 5, 8), "K": random(2, 3, 7, 8), "V": random(2, 3, 7, 4)}
_FLAT: dict[str, Array] = {"Q": random(2, 5, 12), "K": random(2, 7, 12), "V": random(2, 7, 6)}
_HEADS = {"q_num_heads": 3, "kv_num_heads": 3}


@pytest.mark.parametrize("name", SPECS)
def test_every_field_of_the_operator_is_read(name: str) -> None:
    """The spec that a node was written from comes back, with the node's own values."""
    spec = SPECS[name]
    model = bare(spec, opset=minimum_opset(spec)).ir
    found, grown = read_one(standard.read, model)
    attention = found.attention
    assert attention is not None, found.reason
    assert attention.spec == spec
    assert (found.dialect, found.node, found.warnings) == ("ONNX Attention", "attention", ())
    assert sorted(attention.site.inputs.values()) == sorted(value.name or "" for value in grown.graph.inputs)
    assert attention.output is grown.graph.outputs[0]
    presents = [attention.present_key, attention.present_value]
    assert presents == (list(grown.graph.outputs[1:]) if spec.has_past else [None, None])


@pytest.mark.parametrize("opset", [23, 24, 25, 26, 27, 28])
def test_every_opset_that_has_it(opset: int) -> None:
    """From 23 to 28 the operator says the same."""
    node = OneNode(opset=opset, attributes=attributes_of(SPECS["causal"]))
    found, _ = read_one(standard.read, build_one_node_model(node, _PLAIN).ir)
    assert found.attention is not None
    assert found.attention.spec.is_causal


@pytest.mark.parametrize("name", cases(["much", "bsh", "float-mask", "lengths"], ["much"]))
def test_what_is_read_is_what_runs(name: str) -> None:
    """onnxruntime's output agrees with the oracle at the site, and not without the scale."""
    spec = SPECS[name]
    case = AttentionCase(
        spec=spec, batch_size=2, q_seq_len=5, kv_seq_len=6, past_seq_len=4 if spec.has_past else 0, dtype=Dtype.FLOAT32
    )
    feeds = draw_inputs(case, seed=1).onnx_feeds()
    tapped = tap(standard.read, bare(spec, opset=minimum_opset(spec)), feeds)
    assert tapped.judged().verdict is Verdict.OK
    assert tapped.judged(replace(spec, scale=spec.scale_value * 1.1)).verdict is Verdict.WRONG


@pytest.mark.parametrize("mode", QkOutputMode)
def test_the_fourth_output_has_its_stage(mode: QkOutputMode) -> None:
    """It is the attention's scores, of the mode that the node asks for."""
    node = OneNode(attributes={"qk_matmul_output_mode": int(mode), "softcap": 1.5}, outputs=("Y", "", "", "qk"))
    tapped = tap(standard.read, build_one_node_model(node, _PLAIN), _PLAIN)
    scores = tapped.attention.scores
    assert scores is not None
    assert tapped.attention.scores_mode == mode
    expected = expect_qk(tapped.spec, tapped.inputs, mode=mode, precision=find_precision("float32"))
    assert judge_qk(expected, tapped.arrays[scores.name or ""]).verdict is Verdict.OK


def test_a_mask_beside_lengths_is_kept() -> None:
    """The operator takes both; the kind that a spec names is the lengths'."""
    feeds = {**_PLAIN, "attn_mask": random(5, 7), "nonpad_kv_seqlen": np.array([4, 7])}
    node = OneNode(opset=24, inputs=tuple(name if name in feeds else "" for name in ONNX_INPUT_NAMES.values()))
    found, _ = read_one(standard.read, build_one_node_model(node, feeds).ir)
    assert found.attention is not None
    assert found.attention.spec.mask is MaskKind.LENGTHS
    assert sorted(found.attention.site.inputs) == ["attn_mask", "key", "nonpad_kv_seqlen", "query", "value"]


def test_inferred_shapes_are_enough() -> None:
    """A query behind a product is read by what shape inference says, and is given that shape."""
    model = load_model(inner_attention()).ir
    for node in model.graph:
        for value in node.outputs[:1]:
            value.shape = None if node.op_type == "MatMul" else value.shape
    found, grown = read_one(standard.read, model)
    assert found.attention is not None, found.reason
    assert dims(found.attention.query) == [None, 2, None, 8]
    assert [node.op_type for node in grown.graph] == ["MatMul", "Attention", "Add"]


@pytest.mark.parametrize(("precision", "is_reported"), [(ir.DataType.FLOAT, False), (ir.DataType.DOUBLE, True)])
def test_softmax_precision_is_reported(precision: ir.DataType, is_reported: bool) -> None:
    """The canonical form does not have softmax_precision, so a warning reports it."""
    node = OneNode(attributes={"softmax_precision": int(precision)})
    found, _ = read_one(standard.read, build_one_node_model(node, _PLAIN).ir)
    warning = "Its softmax_precision, DOUBLE, is not kept: the runtime computes in its own precision."
    assert found.warnings == ((warning,) if is_reported else ())


@pytest.mark.parametrize(
    ("feeds", "attributes", "inputs", "reason"),
    [
        (_PLAIN, {}, ("Q", "K"), "it has no V."),
        ({**_PLAIN, "V": random(2, 7, 12)}, {}, None, "its Q, K and V have 4, 4 and 3 axes, expected 3 or 4 of each."),
        (_FLAT, {}, None, "its Q, K and V have 3 axes, but it has no q_num_heads and kv_num_heads."),
        (_FLAT, {**_HEADS, "q_num_heads": 5}, None, "the width of its Q is 12, not a multiple of its 5 heads."),
        (
            {**_PLAIN, "K": random(2, 2, 7, 8), "V": random(2, 2, 7, 8)},
            {},
            None,
            "q_num_heads is 3, which kv_num_heads = 2 does not divide.",
        ),
        (
            {**_PLAIN, "V": random(2, 1, 7, 8)},
            {},
            None,
            "its K and V have different numbers of heads, or a width that is not static.",
        ),
        ({**_PLAIN, "K": random(2, 3, 7, 6)}, {}, None, "its Q and K have heads of different widths."),
        (_PLAIN, {"left_window_size": -2}, None, "left_window is -2; it must be -1 (all keys) or more."),
        (_PLAIN, {"scale": 1}, None, "its attribute scale is not a number."),
        (_PLAIN, {"is_causal": 1.0}, None, "its attribute is_causal is not an integer."),
        (_PLAIN, {"qk_matmul_output_mode": 4}, None, "its qk_matmul_output_mode is 4, expected 0, 1, 2 or 3."),
        (
            {**_PLAIN, "attn_mask": np.ones((5, 7), np.int64)},
            {},
            None,
            (
                "the element type of its attn_mask 'attn_mask' is INT64, neither BOOL nor that of its Q (cast it; True "
                "shows a key)."
            ),
        ),
        ({**_PLAIN, "past_key": random(2, 3, 2, 8)}, {}, None, "it has only one of past_key and past_value."),
        (
            {
                **_PLAIN,
                "past_key": random(2, 3, 2, 8),
                "past_value": random(2, 3, 2, 4),
                "nonpad_kv_seqlen": np.array([4, 7]),
            },
            {},
            None,
            "mask 'lengths' cannot be combined with a past.",
        ),
        (
            {name: array.astype(np.int32) for name, array in _PLAIN.items()},
            {},
            None,
            "the element type of its Q is INT32.",
        ),
    ],
)
def test_malformed_nodes_say_why(
    feeds: dict[str, Array], attributes: dict[str, int | float], inputs: tuple[str, ...] | None, reason: str
) -> None:
    """The reason names the first error."""
    given = inputs or tuple(name if name in feeds else "" for name in ONNX_INPUT_NAMES.values())
    node = OneNode(opset=25, attributes=attributes, inputs=given)
    found, _ = read_one(standard.read, build_one_node_model(node, feeds).ir)
    assert found.attention is None
    assert found.reason == f"Attention 'attention': {reason}"


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (None, "the shape of its K is unknown."),
        ([2, None, 7, 8], "the number of heads or the width of its K is not static."),
    ],
)
def test_unknown_shapes_are_reported(shape: list[int | None] | None, reason: str) -> None:
    """A shape that neither the file nor shape inference states is not guessed."""
    model = build_one_node_model(OneNode(), _PLAIN).ir
    model.graph.inputs[1].shape = None if shape is None else ir.Shape(shape)
    found, _ = read_one(standard.read, model)
    assert found.reason == f"Attention 'attention': {reason}"
