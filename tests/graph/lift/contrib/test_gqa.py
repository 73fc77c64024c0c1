"""Read onnxruntime's GroupQueryAttention: caches, lengths, rotary embedding and windows agree with its kernel."""

from dataclasses import replace
from functools import cache

import numpy as np
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.spec import MaskKind
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.lift.contrib import gqa as contrib_gqa
from sdpa_onnx.graph.one_node import build_one_node_model
from tests.graph.lift.taps import Array, Tapped, cases, contrib, contrib_node, dims, random, read_one, refused, whole

_HEADS, _KV_HEADS, _WIDTH = 4, 2, 16
_PRESENT = ("output", "present_key", "present_value")
_LATER = ("k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens")
_PADDED = (
    "The graph does not prove that every sample fills its cache: added nodes compute the buffer of keys, and a mask "
    "replaces lengths and causality. Rows after the new keys are 0 in its present outputs."
)
_NO_PRESENT = (
    "It has a past but no present outputs. Without them onnxruntime's CPU kernel ignores the past and reads beyond "
    "its keys. It is read as the operator's specification says."
)


def _operands(batch: int, length: int) -> dict[str, Array]:
    kv_width = _KV_HEADS * _WIDTH
    return {
        "query": random(batch, length, _HEADS * _WIDTH),
        "key": random(batch, length, kv_width, seed=1),
        "value": random(batch, length, kv_width, seed=2),
    }


def _lengths(*keys: int, total: int) -> dict[str, Array]:
    return {"seqlens_k": whole(*(count - 1 for count in keys)), "total_sequence_length": whole(total)}


def _past(batch: int, length: int) -> dict[str, Array]:
    shape = (batch, _KV_HEADS, length, _WIDTH)
    return {"past_key": random(*shape, seed=3), "past_value": random(*shape, seed=4)}


_TABLES: dict[str, Array] = {"cos_cache": random(32, 8), "sin_cache": random(32, 8, seed=1)}
_PROMPT = {**_operands(2, 5), **_lengths(5, 5, total=5)}
_RIGHT_PADDED = {**_operands(2, 5), **_lengths(5, 3, total=5)}
_TOKEN = {**_operands(2, 1), **_lengths(7, 7, total=7), **_past(2, 6)}
_RAGGED = {**_operands(2, 1), **_lengths(7, 4, total=7), **_past(2, 6)}
_SHARED = {**_operands(2, 1), **_lengths(7, 4, total=7), **_past(2, 12)}
_SEVERAL = {**_operands(1, 3), **_lengths(9, total=9), **_past(1, 6)}
_PACKED = {"query": random(2, 5, (_HEADS + 2 * _KV_HEADS) * _WIDTH), **_lengths(5, 5, total=5)}

_CASES: dict[str, tuple[dict[str, Array], dict[str, int | float]]] = {
    "prompt": (_PROMPT, {}),
    "prompt-empty-cache": ({**_PROMPT, **_past(2, 0)}, {}),
    "prompt-shared-cache": ({**_RIGHT_PADDED, **_past(2, 12)}, {}),
    "prompt-padded": (_RIGHT_PADDED, {}),
    "bidirectional": (_RIGHT_PADDED, {"causal": 0}),
    "figures": (_PROMPT, {"local_window_size": 2, "softcap": 1.5, "scale": 0.3}),
    "bias": ({**_PROMPT, "attention_bias": random(1, _HEADS, 5, 5)}, {}),
    "token": (_TOKEN, {}),
    "token-ragged": (_RAGGED, {}),
    "token-shared": (_SHARED, {}),
    "token-window": (_RAGGED, {"local_window_size": 3}),
    "token-bias": ({**_RAGGED, "attention_bias": random(1, 1, 1, 7)}, {"local_window_size": 3}),
    "several": (_SEVERAL, {}),
    "several-bias": ({**_SEVERAL, "attention_bias": random(1, _HEADS, 3, 9)}, {}),
    "packed": (_PACKED, {}),
    "packed-rotary": ({**_PACKED, **_TABLES}, {"do_rotary": 1}),
    "rotary": ({**_PROMPT, **_TABLES}, {"do_rotary": 1}),
    "rotary-interleaved": ({**_PROMPT, **_TABLES}, {"do_rotary": 1, "rotary_interleaved": 1}),
    "rotary-ragged": ({**_RAGGED, **_TABLES}, {"do_rotary": 1}),
    "rotary-several": ({**_SEVERAL, **_TABLES}, {"do_rotary": 1}),
    "rotary-placed": ({**_RAGGED, **_TABLES, "position_ids": np.array([[3], [9]])}, {"do_rotary": 1}),
    "rotary-placed-prompt": (
        {**_PROMPT, **_TABLES, "position_ids": np.array([[2, 4, 6, 8, 9], [1, 3, 5, 7, 9]])},
        {"do_rotary": 1},
    ),
}

# The other cases run with the slow tests.
_QUICK = {"prompt", "prompt-shared-cache", "token-ragged", "token-window", "several-bias", "packed-rotary", "rotary"}


def _read(feeds: dict[str, Array], *, outputs: tuple[str, ...] = _PRESENT, **attributes: float) -> Tapped:
    figures = {"num_heads": _HEADS, "kv_num_heads": _KV_HEADS, **attributes}
    return contrib(contrib_gqa.read, "GroupQueryAttention", feeds, outputs=outputs, **figures)


def _full(feeds: dict[str, Array], **attributes: float) -> Tapped:
    """The same model with static sizes and lengths."""
    lengths = {name: feeds[name] for name in ("seqlens_k", "total_sequence_length")}
    fed = {name: array for name, array in feeds.items() if name not in lengths}
    figures = {"num_heads": _HEADS, "kv_num_heads": _KV_HEADS, **attributes}
    return contrib(
        contrib_gqa.read, "GroupQueryAttention", fed, outputs=_PRESENT, constants=lengths, dynamic=False, **figures
    )


@cache
def _case(name: str) -> Tapped:
    feeds, attributes = _CASES[name]
    return _read(feeds, **attributes)


@cache
def _full_case(name: str) -> Tapped:
    feeds, attributes = _CASES[name]
    return _full(feeds, **attributes)


@pytest.mark.parametrize("case", cases(_CASES, _QUICK))
def test_what_is_read_is_what_runs(case: str) -> None:
    """The output agrees with the oracle, and the caches with the node's own, up to the rounding of the rotation."""
    tapped, attributes = _case(case), _CASES[case][1]
    agreement = tapped.judged()
    assert agreement.verdict is Verdict.OK, agreement.diagnosis
    assert tapped.found.warnings == (_PADDED,)
    plain = tapped.plain()
    np.testing.assert_array_equal(tapped.arrays["present_value"], plain["present_value"])
    if "do_rotary" in attributes:  # a kernel may use fused multiply-add
        np.testing.assert_allclose(tapped.arrays["present_key"], plain["present_key"], rtol=0, atol=2**-20)
    else:
        np.testing.assert_array_equal(tapped.arrays["present_key"], plain["present_key"])


@pytest.mark.parametrize(
    "case",
    cases(
        ["prompt", "token", "several", "several-bias", "figures", "rotary-several", "packed"],
        ["several-bias", "figures", "packed"],
    ),
)
def test_full_caches_are_read_as_past_and_present(case: str) -> None:
    """If the graph states that every sample fills its cache, no nodes are added."""
    (feeds, attributes), tapped = _CASES[case], _full_case(case)
    spec, attention = tapped.spec, tapped.attention
    assert (spec.is_causal, spec.has_past) == (True, "past_key" in feeds)
    assert spec.mask is (MaskKind.FLOAT if "attention_bias" in feeds else MaskKind.NONE)
    assert spec.left_window == attributes.get("local_window_size", 0) - 1
    assert tapped.found.warnings == ()
    assert [value.name for value in (attention.present_key, attention.present_value) if value] == list(_PRESENT[1:])
    agreement = tapped.judged()
    assert agreement.verdict is Verdict.OK, agreement.diagnosis


@pytest.mark.parametrize(
    ("keys", "past", "is_full"), [((7, 7), 6, True), ((7, 6), 6, False), ((7, 7), 12, False), ((6, 6), 6, False)]
)
def test_stated_lengths_prove_a_full_cache_or_not(keys: tuple[int, ...], past: int, is_full: bool) -> None:
    """With one key fewer in one sample, or a longer buffer, the past of the standard operator does not fit."""
    lengths = _lengths(*keys, total=7)
    feeds = {**_operands(2, 1), **_past(2, past)}
    figures = {"num_heads": _HEADS, "kv_num_heads": _KV_HEADS}
    node = contrib_node("GroupQueryAttention", {**feeds, **lengths}, _PRESENT, figures)
    found, _ = read_one(contrib_gqa.read, build_one_node_model(node, feeds, constants=lengths).ir)
    assert found.attention is not None
    assert found.attention.spec.has_past is is_full


@pytest.mark.parametrize(("surplus", "is_full"), [(-1, True), (0, False)])
def test_computed_lengths_prove_a_full_cache_or_not(surplus: int, is_full: bool) -> None:
    """Lengths computed in the graph from the sizes of query and past prove it for all sizes."""
    figures = {"num_heads": _HEADS, "kv_num_heads": _KV_HEADS}
    model = build_one_node_model(
        contrib_node("GroupQueryAttention", _TOKEN, _PRESENT, figures), _TOKEN, dynamic=True
    ).ir
    _count_by_sizes(model, surplus)
    found, _ = read_one(contrib_gqa.read, model)
    assert found.attention is not None
    assert found.attention.spec.has_past is is_full


def _count_by_sizes(model: ir.Model, surplus: int) -> None:
    """Replace seqlens_k by Expand(Cast(Shape(query)[1] + Shape(past_key)[2] + surplus), Shape(query)[:1])."""
    from sdpa_onnx.graph.nodes import Nodes

    inputs = {value.name: value for value in model.graph.inputs}
    nodes, int64 = Nodes("lengths"), ir.DataType.INT64
    sizes = [nodes("Shape", inputs[name], dtype=int64) for name in ("query", "past_key")]
    queries, past = (
        nodes("Gather", size, nodes.integers(axis), axis=0) for size, axis in zip(sizes, (1, 2), strict=True)
    )
    count = nodes("Add", nodes("Add", past, queries), nodes.integers(surplus))
    narrow = nodes("Cast", count, dtype=ir.DataType.INT32, to=int(ir.DataType.INT32))
    batch = nodes("Slice", sizes[0], nodes.integers(0), nodes.integers(1))
    seqlens = nodes("Expand", narrow, batch)
    node = model.graph[0]
    model.graph.insert_before(node, nodes.written)
    node.replace_input_with(5, seqlens)
    model.graph.inputs.remove(inputs["seqlens_k"])


def test_without_caches_only_the_padding_is_masked() -> None:
    """A prompt whose present outputs are unused stays causal, with a mask of its keys."""
    tapped = _read(_RIGHT_PADDED, outputs=("output",))
    assert (tapped.spec.is_causal, tapped.spec.mask) == (True, MaskKind.BOOL)
    assert dims(tapped.attention.attn_mask) == [None, 1, 1, None]
    assert tapped.found.warnings == ()
    agreement = tapped.judged()
    assert agreement.verdict is Verdict.OK, agreement.diagnosis


def test_values_of_the_site_have_their_ranks() -> None:
    """Added nodes have unique names too."""
    tapped = _read({**_SHARED, **_TABLES}, do_rotary=1)
    attention = tapped.attention
    assert dims(attention.query) == [None, None, 64]
    assert (dims(attention.key), dims(attention.value)) == ([None, None, 32], [None, None, 32])
    assert dims(attention.attn_mask) == [None, 1, None, None]
    assert [value.name for value in tapped.model.graph.outputs] == list(_PRESENT)


@pytest.mark.parametrize("wrong", ["tiled", "scale", "window", "unmasked", "inverted", "unturned", "softcap"])
def test_wrong_readings_fail(wrong: str) -> None:
    """The check detects tiled heads, wrong scale, window off by one, missing or inverted mask, missing rotation."""
    case = {"unmasked": "token-ragged", "inverted": "token-ragged", "unturned": "rotary", "tiled": "prompt"}
    tapped = _case(case[wrong]) if wrong in case else _full_case("figures")
    spec, inputs = tapped.spec, tapped.inputs
    match wrong:
        case "tiled":
            spec = replace(spec, kv_num_heads=_HEADS)
            agreement = tapped.judged(spec, key=np.tile(inputs.key, 2), value=np.tile(inputs.value, 2))
        case "scale":
            agreement = tapped.judged(replace(spec, scale=0.31))
        case "window":
            agreement = tapped.judged(replace(spec, left_window=spec.left_window + 1))
        case "softcap":
            agreement = tapped.judged(replace(spec, softcap=0.0))
        case "unmasked":
            agreement = tapped.judged(replace(spec, mask=MaskKind.NONE), attn_mask=None)
        case "inverted":
            assert inputs.attn_mask is not None
            agreement = tapped.judged(attn_mask=~inputs.attn_mask)
        case _:
            agreement = tapped.judged(query=tapped.feeds["query"])
    assert agreement.verdict is Verdict.WRONG, agreement.diagnosis


@pytest.mark.parametrize(
    ("more", "attributes", "reason"),
    [
        (
            {"head_sink": random(4)},
            {},
            "it has an input head_sink, a term in the sum of the softmax that the standard operator does not have.",
        ),
        ({"k_scale": random(1)}, {}, "it has an input k_scale, so its cache is quantised, which is not read."),
        (
            {"q_norm_weight": random(16)},
            {},
            "it has an input q_norm_weight, a norm of queries and keys, which is not read.",
        ),
        (
            {"query_seqlens": whole(5, 2)},
            {},
            "its query_seqlens may leave out queries, whose output the operator leaves unspecified.",
        ),
        (
            {},
            {"smooth_softmax": 1},
            "its smooth_softmax adds a term to the sum of the softmax, which the standard operator does not have.",
        ),
        (
            {},
            {"sliding_window_cache": 1},
            "its cache holds only the last window of keys (sliding_window_cache), which is not read.",
        ),
        ({}, {"causal": 2}, "its attribute causal is 2, expected 0 or 1."),
        ({}, {"causal": 0, "local_window_size": 3}, "it has a local_window_size but is not causal."),
        ({}, {"local_window_size": 0}, "its local_window_size is 0, so no key is visible."),
        ({}, {"kv_num_heads": 3}, "the width of its key is 32, not a multiple of its 3 heads."),
        ({}, {"num_heads": 8}, "its query and key have heads of different width."),
        ({}, {"do_rotary": 1}, "it has do_rotary but no cos_cache and sin_cache."),
        (
            {"cos_cache": random(32, 9), "sin_cache": random(32, 9)},
            {"do_rotary": 1},
            "its cos_cache rotates 18 columns, but its heads have width 16.",
        ),
        ({"past_key": random(2, 2, 3, 16)}, {}, "it has only one of past_key and past_value."),
    ],
)
def test_refusals_say_why(more: dict[str, Array], attributes: dict[str, int | float], reason: str) -> None:
    """The reason names the feature that the standard operator does not have or that is not read."""
    figures = {"num_heads": _HEADS, "kv_num_heads": _KV_HEADS, **attributes}
    reason_found = refused(
        contrib_gqa.read, "GroupQueryAttention", {**_PROMPT, **more}, outputs=_PRESENT, extra=_LATER, **figures
    )
    assert reason_found == f"GroupQueryAttention 'groupqueryattention': {reason}"


def test_the_fourth_output_is_refused() -> None:
    """Its stages of the scores differ from those of the standard operator."""
    reason_found = refused(
        contrib_gqa.read,
        "GroupQueryAttention",
        _PROMPT,
        outputs=(*_PRESENT, "output_qk"),
        num_heads=_HEADS,
        kv_num_heads=_KV_HEADS,
    )
    reason = "its output output_qk is used, which the standard operator computes at another stage."
    assert reason_found == f"GroupQueryAttention 'groupqueryattention': {reason}"


@pytest.mark.parametrize(
    ("feeds", "outputs", "warnings"),
    [
        (_RAGGED, _PRESENT, (_PADDED,)),
        (_RAGGED, ("output",), (_PADDED, _NO_PRESENT)),
        (_SHARED, ("output",), (_PADDED, _NO_PRESENT)),
        (_SEVERAL, ("output", "present_key"), (_PADDED, _NO_PRESENT)),
        (_PROMPT, ("output",), ()),
    ],
)
def test_a_past_without_presents_is_a_warning(
    feeds: dict[str, Array], outputs: tuple[str, ...], warnings: tuple[str, ...]
) -> None:
    """onnxruntime's kernel reads the past only from the present outputs, into which it copies it."""
    figures = {"num_heads": _HEADS, "kv_num_heads": _KV_HEADS}
    node = contrib_node("GroupQueryAttention", feeds, outputs, figures)
    found, _ = read_one(contrib_gqa.read, build_one_node_model(node, feeds).ir)
    assert found.attention is not None, found.reason
    assert found.warnings == warnings


def test_a_past_without_presents_warns_where_caches_are_full() -> None:
    """The warning does not need added nodes."""
    lengths = {name: _TOKEN[name] for name in ("seqlens_k", "total_sequence_length")}
    fed = {name: array for name, array in _TOKEN.items() if name not in lengths}
    node = contrib_node("GroupQueryAttention", _TOKEN, ("output",), {"num_heads": _HEADS, "kv_num_heads": _KV_HEADS})
    found, _ = read_one(contrib_gqa.read, build_one_node_model(node, fed, constants=lengths).ir)
    assert found.warnings == (_NO_PRESENT,)
