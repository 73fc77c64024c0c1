"""Inputs: drawn by seed, in the right type, at the stated spread."""

from typing import Any

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import LADDER, AttentionInputs, draw_inputs, numpy_dtype
from sdpa_onnx.core.attention.oracle import QkOutputMode, attend
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, Layout, MaskKind


def case(dtype: Dtype = Dtype.FLOAT64, q: int = 32, kv: int = 64, batch: int = 2, **of_spec: Any) -> AttentionCase:
    spec = AttentionSpec(**{"q_num_heads": 2, "kv_num_heads": 2, "head_dim": 64, **of_spec})
    return AttentionCase(spec=spec, batch_size=batch, q_seq_len=q, kv_seq_len=kv, dtype=dtype)


@pytest.mark.parametrize("spread", LADDER)
@pytest.mark.parametrize(
    "of_spec",
    [{}, {"head_dim": 8}, {"head_dim": 256}, {"scale": "none"}, {"scale": "1/d_k"}, {"scale": -0.5}, {"layout": "bsh"}],
    ids=str,
)
def test_logits_have_the_stated_spread(spread: float, of_spec: dict[str, Any]) -> None:
    """The standard deviation of the scaled scores is the spread, whatever width and scale."""
    problem = case(q=128, kv=128, **of_spec)
    scores = attend(problem.spec, draw_inputs(problem, spread=spread), qk_mode=QkOutputMode.SCORES).qk
    assert scores is not None
    # Components are few and shared: the relative error of the spread is about sqrt(1 / (rows * head_dim)).
    assert scores.std() == pytest.approx(spread, rel=0.1)


def test_values_have_spread_one_at_any_spread_of_logits() -> None:
    """Only query and key follow the spread."""
    assert draw_inputs(case(), spread=4.0).value.std() == pytest.approx(1.0, rel=0.05)


def test_scale_zero_draws_finite_inputs() -> None:
    """A scale of 0 has no spread; the inputs are those of scale 1."""
    assert np.isfinite(draw_inputs(case(scale=0.0)).query).all()


def test_same_seed_same_arrays() -> None:
    """All arrays repeat with the seed, and change with it."""
    problem = case(mask=MaskKind.BOOL, has_past=True)
    first, again, other = (draw_inputs(problem, seed=seed).named() for seed in (3, 3, 4))
    assert set(first) == {"query", "key", "value", "attn_mask", "past_key", "past_value"}
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first["query"], other["query"])
    assert not np.array_equal(first["attn_mask"], other["attn_mask"])


@pytest.mark.parametrize("dtype", Dtype)
def test_arrays_come_in_the_type_and_shape_of_the_case(dtype: Dtype) -> None:
    """Every float array has the case's type, as the runtime will receive it."""
    problem = case(dtype, mask=MaskKind.FLOAT, layout=Layout.BSH)
    arrays = draw_inputs(problem).named()
    assert {name: array.shape for name, array in arrays.items()} == problem.input_shapes()
    assert {array.dtype for array in arrays.values()} == {numpy_dtype(dtype)}
    assert numpy_dtype(dtype).name == dtype.value


def test_a_drawn_boolean_mask_hides_a_quarter_and_the_last_query() -> None:
    """True may attend; the last query of each sample sees nothing."""
    mask = draw_inputs(case(q=65, kv=64, mask=MaskKind.BOOL)).attn_mask
    assert mask is not None
    assert mask.dtype == np.bool_
    assert not mask[..., -1, :].any()
    assert mask[..., :-1, :].mean() == pytest.approx(0.75, abs=0.03)


def test_drawn_lengths_lie_between_half_and_all() -> None:
    """Both ends occur."""
    counts = draw_inputs(case(batch=200, q=1, kv=5, mask=MaskKind.LENGTHS)).nonpad_kv_seqlen
    assert counts is not None
    assert counts.dtype == np.int64
    assert set(counts.tolist()) == {3, 4, 5}


def test_feeds_carry_onnx_names_both_ways() -> None:
    """Only arrays that are present are fed, and each is read back into the same field."""
    inputs = draw_inputs(case(mask=MaskKind.LENGTHS))
    feeds = inputs.onnx_feeds()
    assert list(feeds) == ["Q", "K", "V", "nonpad_kv_seqlen"]
    assert feeds["K"] is inputs.key
    back = AttentionInputs.from_feeds({**feeds, "unrelated": inputs.query})
    assert back.named().keys() == inputs.named().keys()
    assert back.value is inputs.value
    assert back.attn_mask is None
