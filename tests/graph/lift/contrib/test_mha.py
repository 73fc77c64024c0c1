"""Read onnxruntime's MultiHeadAttention: the result agrees with its kernel."""

from dataclasses import replace
from functools import cache

import numpy as np
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.spec import MaskKind
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.cut import cut_out
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.contrib import mha as contrib_mha
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.one_node import build_one_node_model
from tests.graph.lift.taps import (
    Array,
    Tapped,
    cases,
    contrib,
    contrib_node,
    dims,
    flags,
    random,
    read_one,
    refused,
    run,
    whole,
)

_PRESENT = ("output", "present_key", "present_value")
_LOWEST = float(np.finfo(np.float32).min)
_ALIGNMENT = (
    "Its numbers of queries and keys may differ. It is read as the operator's specification says: query i sees the "
    "keys up to i. In onnxruntime's CPU kernel the last query sees every key instead."
)
_NO_PRESENT = (
    "It has a past but no present outputs. Without them onnxruntime's CPU kernel ignores the past and reads beyond "
    "its keys. It is read as the operator's specification says."
)
_STARTS = "Its key_padding_mask may hold starts (3 x samples + 2 numbers); it is read as that of padded samples."

_CROSS = {"query": random(2, 5, 16), "key": random(2, 7, 16), "value": random(2, 7, 6)}
_SELF = {"query": random(2, 5, 16), "key": random(2, 5, 16, seed=1), "value": random(2, 5, 16, seed=2)}
_HEADS_FIRST = {"query": random(2, 5, 16), "key": random(2, 2, 7, 8), "value": random(2, 2, 7, 8, seed=1)}
_PAST = {"past_key": random(2, 2, 4, 8), "past_value": random(2, 2, 4, 8, seed=1)}
_HIDES_ALL = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0]], np.int32)

_CASES: dict[str, tuple[dict[str, Array], dict[str, int | float]]] = {
    "separate": (_CROSS, {}),
    "bias": ({**_CROSS, "bias": random(38)}, {}),
    "scale": (_CROSS, {"scale": 0.7}),
    "lengths": ({**_CROSS, "key_padding_mask": whole(3, 6)}, {}),
    "no-length": ({**_CROSS, "key_padding_mask": whole(3, 0)}, {}),
    "lengths-and-starts": ({**_CROSS, "key_padding_mask": whole(3, 6, 0, 5, 10, 0, 7, 14)}, {}),
    "keys": ({**_CROSS, "key_padding_mask": flags(2, 7)}, {}),
    "no-key": ({**_CROSS, "key_padding_mask": _HIDES_ALL}, {}),
    "no-key-lowest": ({**_CROSS, "key_padding_mask": _HIDES_ALL}, {"mask_filter_value": _LOWEST}),
    "queries": ({**_CROSS, "key_padding_mask": flags(2, 5, 7)}, {}),
    "infinite": ({**_CROSS, "key_padding_mask": flags(2, 7)}, {"mask_filter_value": -np.inf}),
    "bias-11": ({**_CROSS, "attention_bias": random(1, 1, 5, 7)}, {}),
    "bias-21": ({**_CROSS, "attention_bias": random(2, 1, 5, 7)}, {}),
    "bias-12": ({**_CROSS, "attention_bias": random(1, 2, 5, 7)}, {}),
    "bias-22": ({**_CROSS, "attention_bias": random(2, 2, 5, 7)}, {}),
    "bias-and-keys": ({**_CROSS, "attention_bias": random(1, 2, 5, 7), "key_padding_mask": flags(2, 7)}, {}),
    "bias-and-infinite": (
        {**_CROSS, "attention_bias": random(1, 2, 5, 7), "key_padding_mask": flags(2, 7)},
        {"mask_filter_value": -np.inf},
    ),
    "past": ({**_SELF, **_PAST, "bias": random(48)}, {}),
    "past-lengths": ({**_SELF, **_PAST, "key_padding_mask": whole(6, 9)}, {}),
    "past-keys": ({**_SELF, **_PAST, "key_padding_mask": flags(2, 9)}, {}),
    "past-causal": ({**_SELF, **_PAST, "attention_bias": random(1, 1, 5, 9)}, {"unidirectional": 1}),
    "causal": (_SELF, {"unidirectional": 1}),
    "causal-keys": ({**_SELF, "key_padding_mask": flags(2, 5)}, {"unidirectional": 1}),
    "heads-first": (_HEADS_FIRST, {}),
    "heads-first-bias": ({**_HEADS_FIRST, "bias": random(48)}, {}),
    "heads-first-keys": ({**_HEADS_FIRST, "key_padding_mask": flags(2, 7)}, {}),
}

# The other cases run with the slow tests.
_QUICK = {
    "bias",
    "scale",
    "lengths",
    "keys",
    "no-key",
    "queries",
    "infinite",
    "bias-12",
    "past",
    "past-causal",
    "heads-first-bias",
}


def _read(feeds: dict[str, Array], *, outputs: tuple[str, ...] = ("output",), **attributes: float) -> Tapped:
    outputs = _PRESENT if "past_key" in feeds else outputs
    return contrib(contrib_mha.read, "MultiHeadAttention", feeds, outputs=outputs, num_heads=2, **attributes)


def _attention(feeds: dict[str, Array], **attributes: float) -> GraphAttention:
    """The attention that is read, without running the model."""
    node = contrib_node("MultiHeadAttention", feeds, _PRESENT, {"num_heads": 2, **attributes})
    found, _ = read_one(contrib_mha.read, build_one_node_model(node, feeds, dynamic=True).ir)
    assert found.attention is not None, found.reason
    return found.attention


def _refused(feeds: dict[str, Array], *, outputs: tuple[str, ...] = ("output",), **attributes: float) -> str:
    attributes = {"num_heads": 2, **attributes}
    reason = refused(contrib_mha.read, "MultiHeadAttention", feeds, outputs=outputs, **attributes)
    start = "MultiHeadAttention 'multiheadattention': "
    assert reason.startswith(start)
    return reason.removeprefix(start)


@cache
def _case(name: str) -> Tapped:
    feeds, attributes = _CASES[name]
    return _read(feeds, **attributes)


@pytest.mark.parametrize("case", cases(_CASES, _QUICK))
def test_what_is_read_is_what_runs(case: str) -> None:
    """The kernel's output agrees with the oracle on the attention's inputs."""
    agreement = _case(case).judged()
    assert agreement.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL), agreement.diagnosis


@pytest.mark.parametrize("case", cases(["past", "heads-first", "separate"], ["past"]))
def test_presents_are_past_and_new_keys(case: str) -> None:
    """The attention's caches are the node's own."""
    feeds, attributes = _CASES[case]
    tapped = _read(feeds, outputs=_PRESENT, **attributes)
    inputs, attention, plain = tapped.inputs, tapped.attention, tapped.plain()
    for name, new, past in (
        ("present_key", inputs.key, inputs.past_key),
        ("present_value", inputs.value, inputs.past_value),
    ):
        apart = new.reshape(2, new.shape[1], 2, -1).transpose(0, 2, 1, 3)
        wanted = apart if past is None else np.concatenate([past, apart], axis=2)
        np.testing.assert_array_equal(plain[name], wanted)
    assert (attention.present_key, attention.present_value) == tuple(tapped.model.graph.outputs[1:])


def test_kinds_of_masks() -> None:
    """A finite fill becomes a float mask, an infinite one a boolean mask; without a mask there is none."""
    kinds = {case: _attention(feeds, **attributes).spec.mask for case, (feeds, attributes) in _CASES.items()}
    assert {case for case, kind in kinds.items() if kind is MaskKind.BOOL} == {"infinite"}
    none = {"separate", "bias", "scale", "past", "causal", "heads-first", "heads-first-bias"}
    assert {case for case, kind in kinds.items() if kind is MaskKind.NONE} == none


def test_figures_and_shapes() -> None:
    """Head counts, widths and scale are the node's; every value has its rank."""
    attention = _attention({**_SELF, **_PAST, "key_padding_mask": whole(6, 9)}, scale=0.7, unidirectional=1)
    spec = attention.spec
    assert (spec.q_num_heads, spec.kv_num_heads, spec.head_dim, spec.v_head_dim) == (2, 2, 8, 8)
    assert (round(spec.scale_value, 6), spec.is_causal, spec.has_past) == (0.7, True, True)
    assert dims(attention.query) == [None, None, 16]
    assert dims(attention.output) == [None, None, 16]
    assert dims(attention.attn_mask) == [None, 1, 1, None]


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        ("scale", "scale"),
        ("bias", "bias"),
        ("heads-first-bias", "bias"),
        ("keys", "mask"),
        ("lengths", "unmasked"),
        ("no-key", "zero"),
        ("no-key-lowest", "zero"),
        ("bias-12", "heads"),
        ("past-causal", "acausal"),
    ],
)
def test_wrong_readings_fail(case: str, wrong: str) -> None:
    """The check detects a missing scale, bias or mask, an inverted mask, and swapped heads."""
    tapped = _case(case)
    spec, mask, query = tapped.spec, tapped.inputs.attn_mask, np.asarray(tapped.feeds["query"])
    match wrong:
        case "scale":
            agreement = tapped.judged(replace(spec, scale=1.0))
        case "bias":
            agreement = tapped.judged(query=query)
        case "mask":
            agreement = tapped.judged(attn_mask=np.where(mask == 0, np.float32(-1e4), np.float32(0)))
        case "unmasked":
            agreement = tapped.judged(replace(spec, mask=MaskKind.NONE), attn_mask=None)
        case "zero":
            agreement = tapped.judged(replace(spec, mask=MaskKind.BOOL), attn_mask=mask == 0)
        case "heads":
            assert mask is not None
            agreement = tapped.judged(attn_mask=mask[:, ::-1])
        case _:
            agreement = tapped.judged(replace(spec, is_causal=False))
    assert agreement.verdict is Verdict.WRONG, agreement.diagnosis


def test_the_known_fault_of_causal_lengths_that_differ() -> None:
    """With more keys than queries, the last query sees all keys in onnxruntime; nothing else differs."""
    tapped = _read(_CROSS, unidirectional=1)
    assert tapped.found.warnings == (_ALIGNMENT,)
    assert tapped.judged().verdict is Verdict.WRONG
    seen = np.tril(np.ones((5, 7), dtype=bool))
    seen[-1] = True
    faulty = replace(tapped.spec, is_causal=False, mask=MaskKind.BOOL)
    assert tapped.judged(faulty, attn_mask=seen).verdict is Verdict.OK


def test_lengths_known_to_be_equal_raise_no_doubt() -> None:
    """With static sizes there is no warning about alignment or starts."""
    feeds = {**_SELF, "key_padding_mask": whole(3, 5)}
    node = contrib_node("MultiHeadAttention", feeds, ("output",), {"num_heads": 2, "unidirectional": 1})
    fixed, _ = read_one(contrib_mha.read, build_one_node_model(node, feeds).ir)
    open_, _ = read_one(contrib_mha.read, build_one_node_model(node, feeds, dynamic=True).ir)
    assert fixed.warnings == ()
    assert open_.warnings == (_STARTS, _ALIGNMENT)


def test_a_past_without_presents_is_reason_found() -> None:
    """onnxruntime's kernel concatenates the past only while it writes the present outputs."""
    feeds = {**_SELF, **_PAST}
    for outputs, warnings in ((_PRESENT, ()), (("output",), (_NO_PRESENT,))):
        node = contrib_node("MultiHeadAttention", feeds, outputs, {"num_heads": 2})
        found, _ = read_one(contrib_mha.read, build_one_node_model(node, feeds).ir)
        assert found.warnings == warnings


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("packed", ["query", "key"])
def test_packed_operands_are_set_apart(packed: str, bias: bool) -> None:
    """No CPU kernel runs them, so the added nodes run alone and are compared entry by entry."""
    whole_ = random(2, 5, 2, 3, 8) if packed == "query" else random(2, 5, 2, 2, 8)
    feeds = {"query": whole_} if packed == "query" else {"query": random(2, 5, 16), "key": whole_}
    added = random(48) if bias and packed == "query" else np.zeros(48, np.float32)
    given = {**feeds, "bias": added} if bias and packed == "query" else feeds
    node = contrib_node("MultiHeadAttention", given, ("output",), {"num_heads": 2})
    found, grown = read_one(contrib_mha.read, build_one_node_model(node, given, dynamic=True).ir)
    assert found.attention is not None, found.reason
    site = found.attention.site
    names = [site.query, site.key, site.value]
    part = cut_out(OnnxModel(ir=grown, sites=()), inputs=list(given), outputs=[n for n in names if n not in given])
    arrays = {**given, **run(part, given)}
    wanted = [feeds["query"]] if packed == "key" else []
    wanted += [whole_[:, :, :, place].reshape(2, 5, 16) for place in range(whole_.shape[3])]
    for place, (name, expected) in enumerate(zip(names, wanted, strict=True)):
        np.testing.assert_array_equal(arrays[name], expected + added[16 * place : 16 * place + 16])


def test_the_width_is_reason_found_by_the_weights_where_no_shape_is() -> None:
    """After operators without shape inference, the width comes from the weights of the projection."""
    feeds = {"query": random(2, 5, 16), "key": random(2, 5, 16, seed=1), "value": random(2, 5, 16, seed=2)}
    model = build_one_node_model(contrib_node("MultiHeadAttention", feeds, ("output",), {"num_heads": 2}), feeds).ir
    node = model.graph[0]
    for place, value in enumerate(list(model.graph.inputs)):
        weights = ir.Value(name=f"w{place}", const_value=ir.tensor(random(16, 16), name=f"w{place}"))
        weights.shape, weights.type = ir.Shape((16, 16)), ir.TensorType(ir.DataType.FLOAT)
        model.graph.initializers[f"w{place}"] = weights
        unknown = ir.node("Unknown", [value], domain="other")
        product = ir.node("MatMul", [unknown.outputs[0], weights])
        product.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        model.graph.insert_before(node, [unknown, product])
        node.replace_input_with(place, product.outputs[0])
    found, _ = read_one(contrib_mha.read, model)
    assert found.attention is not None, found.reason
    assert dims(found.attention.query) == [None, None, 16]


@pytest.mark.parametrize(
    ("feeds", "attributes", "reason"),
    [
        (_CROSS, {"num_heads": 3}, "the width of its query is 16, not a multiple of its 3 heads."),
        (_CROSS, {"num_heads": 0}, "its attribute num_heads is 0, expected at least 1."),
        (_CROSS, {"scale": 1}, "its attribute scale is not a number."),
        ({"query": random(2, 5, 16)}, {}, "it has no key, and its query has 3 axes."),
        ({"query": random(5, 16)}, {}, "the rank of its query is neither 3 nor 5."),
        ({"query": random(2, 5, 16), "key": random(7, 16)}, {}, "the rank of its key is 2, not 3, 4 or 5."),
        ({"query": random(2, 5, 16), "key": random(2, 7, 16)}, {}, "it has no value."),
        ({**_CROSS, "key": random(2, 7, 12)}, {}, "its query and key have heads of different width."),
        ({**_CROSS, "bias": random(40)}, {}, "its bias has shape [40], expected [38]."),
        (
            {**_CROSS, "key_padding_mask": flags(2, 1, 5, 7)},
            {},
            (
                "its key_padding_mask 'key_padding_mask' has 4 axes instead of 1, 2 or 3 (declare its shape in the "
                "file, or use attention_bias for a mask of 4 axes)."
            ),
        ),
        ({**_CROSS, "key_padding_mask": flags(2, 7)}, {"mask_filter_value": 1.0}, "its mask_filter_value is 1, "),
        ({**_HEADS_FIRST, "value": random(2, 7, 6)}, {}, "its key has 4 axes, but its value has not."),
        (
            {**_HEADS_FIRST, "key": random(2, 3, 7, 8)},
            {},
            "its key does not have the 2 heads of its attribute num_heads.",
        ),
        (
            {"query": random(2, 5, 3, 3, 8)},
            {},
            "its query has shape (samples, length, 3, 3, width), expected 2 heads and 3 packed.",
        ),
        ({**_CROSS, "attention_bias": random(5, 7)}, {}, "its attention_bias has 2 axes, expected 4."),
        ({**_SELF, "past_key": random(2, 4, 16)}, {}, "its past_key has 3 axes, expected 4."),
        ({**_SELF, "past_key": random(2, 2, 4, 8)}, {}, "it has only one of past_key and past_value."),
        (
            {**_SELF, **_PAST, "past_sequence_length": whole(3)},
            {},
            "it has an input past_sequence_length, that is, one buffer for past and present keys, which is not read.",
        ),
        (
            {**_SELF, **_PAST, "cache_indirection": whole(3)},
            {},
            "it has an input cache_indirection, for beam search, which is not read.",
        ),
        (
            {name: array.astype(np.int32) for name, array in _SELF.items()},
            {},
            "the element type of its query is INT32.",
        ),
    ],
)
def test_refusals_say_why(feeds: dict[str, Array], attributes: dict[str, int | float], reason: str) -> None:
    """The reason names the node and what was found; the graph stays unchanged."""
    reason_found = _refused(feeds, **attributes)
    assert reason_found == reason or (reason.endswith(", ") and reason_found.startswith(reason))


def test_the_fourth_output_is_refused() -> None:
    """The operator's specification does not name its stage of the scores."""
    reason_found = _refused(_CROSS, outputs=(*_PRESENT, "qk"))
    assert (
        reason_found == "its output qk is used, and the operator's specification does not name its stage of the scores."
    )
