"""Read onnxruntime's own Attention, which includes the projection: the result agrees with its kernel."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from sdpa_onnx.core.attention.spec import MaskKind
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.lift.contrib import attention as contrib_attention
from tests.graph.lift.taps import Array, Tapped, cases, contrib, dims, flags, random, refused, whole

_ROWS = {"input": random(2, 5, 7)}
_WEIGHTS: dict[str, Array] = {"weights": 0.3 * random(7, 48), "bias": random(48)}
_NARROW: dict[str, Array] = {"weights": 0.3 * random(7, 38), "bias": random(38)}
_PAST = {"past": random(2, 2, 2, 4, 8)}

_CASES: dict[str, tuple[dict[str, Array], dict[str, int | float | list[int]]]] = {
    "plain": (_ROWS, {}),
    "scale": (_ROWS, {"scale": 0.7}),
    "causal": (_ROWS, {"unidirectional": 1}),
    "widths": (_ROWS, {"qkv_hidden_sizes": [16, 16, 6]}),
    "ends": ({**_ROWS, "mask_index": whole(3, 5)}, {}),
    "no-end": ({**_ROWS, "mask_index": whole(3, 0)}, {}),
    "ends-and-starts": ({**_ROWS, "mask_index": whole(3, 5, 1, 2)}, {}),
    "cumulative": ({**_ROWS, "mask_index": whole(3, 5, 0, 5, 10, 0, 5, 10)}, {}),
    "keys": ({**_ROWS, "mask_index": flags(2, 5)}, {}),
    "queries": ({**_ROWS, "mask_index": flags(2, 5, 5)}, {"unidirectional": 1}),
    "dummy": ({**_ROWS, "mask_index": np.zeros((2, 1), np.int32)}, {}),
    "bias": ({**_ROWS, "attention_bias": random(1, 2, 5, 5)}, {}),
    "bias-and-ends": ({**_ROWS, "attention_bias": random(2, 2, 5, 5), "mask_index": whole(3, 5)}, {}),
    "past": ({**_ROWS, **_PAST}, {}),
    "past-causal": ({**_ROWS, **_PAST}, {"unidirectional": 1}),
    "past-ends-and-starts": ({**_ROWS, **_PAST, "mask_index": whole(7, 9, 2, 3)}, {"unidirectional": 1}),
    "past-keys": ({**_ROWS, **_PAST, "mask_index": flags(2, 9)}, {}),
}

# The other cases run with the slow tests.
_QUICK = {"widths", "causal", "no-end", "ends-and-starts", "queries", "dummy", "bias-and-ends", "past-ends-and-starts"}


def _read(
    feeds: dict[str, Array], constants: dict[str, Array] | None = None, **attributes: float | list[int]
) -> Tapped:
    outputs = ("output", "present") if "past" in feeds else ("output",)
    held = constants or (_NARROW if "qkv_hidden_sizes" in attributes else _WEIGHTS)
    return contrib(
        contrib_attention.read, "Attention", feeds, outputs=outputs, constants=held, num_heads=2, **attributes
    )


@cache
def _case(name: str) -> Tapped:
    feeds, attributes = _CASES[name]
    return _read(feeds, **attributes)


@pytest.mark.parametrize("case", cases(_CASES, _QUICK))
def test_what_is_read_is_what_runs(case: str) -> None:
    """The kernel's output agrees with the oracle on the outputs of the added projection."""
    agreement = _case(case).judged()
    assert agreement.verdict is Verdict.OK, agreement.diagnosis


def test_the_bias_may_be_left_out() -> None:
    """Without a bias, no Add follows the projection."""
    tapped = _read(_ROWS, {"weights": _WEIGHTS["weights"]})
    assert tapped.judged().verdict is Verdict.OK
    assert "Add" not in {node.op_type for node in tapped.model.graph}


def test_the_stacked_present_is_made_of_two() -> None:
    """The graph output `present` is unchanged, now computed from the attention's own caches."""
    tapped = _case("past-ends-and-starts")
    present, plain = tapped.arrays["present"], tapped.plain()["present"]
    np.testing.assert_array_equal(present[:, :, :, :4], plain[:, :, :, :4])
    np.testing.assert_allclose(present, plain, rtol=0, atol=2**-20)  # the projection sums in another order
    attention = tapped.attention
    assert tapped.model.graph.outputs[1].name == "present"
    for value in (attention.present_key, attention.present_value):
        assert dims(value) == [None, 2, None, 8]
        assert value is not None
        assert [user.op_type for user in value.consumers()] == ["Unsqueeze"]


def test_figures_and_shapes() -> None:
    """Widths come from the weights' columns; every value has its rank."""
    attention = _case("widths").attention
    assert (attention.spec.head_dim, attention.spec.v_head_dim) == (8, 3)
    assert (dims(attention.query), dims(attention.value)) == ([None, None, 16], [None, None, 6])
    assert dims(attention.output) == [None, None, 6]


@pytest.mark.parametrize("wrong", ["scale", "acausal", "bias", "unmasked", "starts", "zero", "dummy"])
def test_wrong_readings_fail(wrong: str) -> None:
    """The check detects a wrong scale, missing causality, bias, mask or starts, and zero for a fully masked row."""
    case = {"acausal": "causal", "bias": "plain", "unmasked": "keys", "starts": "ends-and-starts", "zero": "no-end"}
    tapped = _case(case.get(wrong, wrong))
    spec, inputs, mask = tapped.spec, tapped.inputs, tapped.inputs.attn_mask
    match wrong:
        case "scale":
            agreement = tapped.judged(replace(spec, scale=0.71))
        case "acausal":
            agreement = tapped.judged(replace(spec, is_causal=False))
        case "bias":
            agreement = tapped.judged(query=inputs.query - _WEIGHTS["bias"][:16])
        case "unmasked":
            agreement = tapped.judged(replace(spec, mask=MaskKind.NONE), attn_mask=None)
        case "starts":
            ends = np.arange(5) < tapped.feeds["mask_index"][:2].reshape(2, 1, 1, 1)
            agreement = tapped.judged(replace(spec, mask=MaskKind.BOOL), attn_mask=ends)
        case "zero":
            assert mask is not None
            agreement = tapped.judged(replace(spec, mask=MaskKind.BOOL), attn_mask=mask == 0)
        case _:
            hidden = np.full((2, 1, 1, 1), -1e4, np.float32)
            agreement = tapped.judged(replace(spec, mask=MaskKind.FLOAT), attn_mask=hidden)
    assert agreement.verdict is Verdict.WRONG, agreement.diagnosis


@pytest.mark.parametrize(
    ("more", "attributes", "reason"),
    [
        (
            {"past_sequence_length": whole(1)},
            {},
            "it has an input past_sequence_length, that is, one buffer for past and present keys, which is not read.",
        ),
        ({}, {"past_present_share_buffer": 1}, "its past and present share one buffer, which is not read."),
        ({}, {"do_rotary": 1}, "its rotary embedding (do_rotary) uses angles that are not in the file."),
        ({}, {"qkv_hidden_sizes": [16, 16]}, "its attribute qkv_hidden_sizes is not a list of three integers."),
        (
            {},
            {"qkv_hidden_sizes": [16, 16, 6]},
            "its qkv_hidden_sizes are [16, 16, 6], which do not fit weights of 48 columns.",
        ),
        ({"weights": random(7, 47)}, {}, "its weights have 47 columns, not a multiple of 3."),
        ({"weights": random(7, 45)}, {}, "the width of its query is 15, not a multiple of its 2 heads."),
        (
            {"mask_index": flags(2, 1, 9, 9)},
            {},
            (
                "its mask_index 'mask_index' has 4 axes (Megatron's mask), which is not read (use 3: batch, queries, "
                "keys)."
            ),
        ),
        ({"past": random(2, 2, 4, 8)}, {}, "its past has 4 axes, expected 5."),
        ({"input": random(5, 7)}, {}, "the rank of its input is not 3."),
    ],
)
def test_refusals_say_why(more: dict[str, Array], attributes: dict[str, int | float | list[int]], reason: str) -> None:
    """The reason names what cannot be read, and no node is added."""
    told = refused(contrib_attention.read, "Attention", {**_ROWS, **_WEIGHTS, **more}, num_heads=2, **attributes)
    assert told == f"Attention 'attention': {reason}"
