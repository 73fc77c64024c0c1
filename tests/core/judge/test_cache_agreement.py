"""The returned cache: only equal numbers pass, whatever they are."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.judge.cache_agreement import judge_present
from sdpa_onnx.core.records.verdicts import Verdict

Float32 = NDArray[np.float32]

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4, has_past=True)


def _arrays(*lengths: int) -> tuple[Float32, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((1, 2, length, 4)).astype(np.float32) for length in lengths)


def _judged(past: Float32, new: Float32, present: Float32, spec: AttentionSpec = _SPEC) -> Verdict:
    inputs = AttentionInputs(query=new, key=new, value=new, past_key=past, past_value=past)
    return judge_present(spec, inputs, {"present_key": present})["present_key"].verdict


def test_nan_equals_nan() -> None:
    """A copied NaN is correct; a NaN that appears or disappears is not."""
    past, new = _arrays(5, 3)
    past[0, 1, 2, 3] = np.nan
    right = np.concatenate([past, new], axis=2)
    more, fewer = right.copy(), np.nan_to_num(right)
    more[0, 0, 0, 0] = np.nan
    assert _judged(past, new, right) is Verdict.OK
    assert _judged(past, new, more) is Verdict.WRONG
    assert _judged(past, new, fewer) is Verdict.WRONG


@pytest.mark.parametrize(("old", "added"), [(0, 3), (5, 0), (0, 0)])
def test_empty_arrays(old: int, added: int) -> None:
    """No past, no new keys or neither: the rest is copied, and a key too many is wrong."""
    past, new = _arrays(old, added)
    right = np.concatenate([past, new], axis=2)
    assert _judged(past, new, right) is Verdict.OK
    longer = np.concatenate([right, np.zeros((1, 2, 1, 4), np.float32)], axis=2)
    assert _judged(past, new, longer) is Verdict.WRONG


def test_three_dimensional_layout() -> None:
    """New keys of all heads in a row are split into heads; heads that are split the other way are wrong."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4, has_past=True, layout=Layout.BSH)
    (past,) = _arrays(5)
    new = np.random.default_rng(1).standard_normal((1, 3, 8)).astype(np.float32)
    apart = np.stack([new[:, :, :4], new[:, :, 4:]], axis=1)
    mingled = np.stack([new[:, :, 0::2], new[:, :, 1::2]], axis=1)
    assert _judged(past, new, np.concatenate([past, apart], axis=2), spec) is Verdict.OK
    assert _judged(past, new, np.concatenate([past, mingled], axis=2), spec) is Verdict.WRONG


def test_nothing_to_judge() -> None:
    """Without a past, or without the output, there is no judgement and none is invented."""
    past, new = _arrays(5, 3)
    with_past = AttentionInputs(query=new, key=new, value=new, past_key=past, past_value=past)
    assert judge_present(_SPEC, with_past, {}) == {}
    without = AttentionInputs(query=new, key=new, value=new)
    assert judge_present(_SPEC, without, {"present_key": new}) == {}
