"""The returned cache: only equal numbers pass, whatever they are."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import FloatFormat, find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.core.judge.cache_agreement import judge_copy, present_of
from sdpa_onnx.core.records.verdicts import Verdict

Float32 = NDArray[np.float32]
Array = NDArray[np.generic]

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4, has_past=True)


def _arrays(*lengths: int) -> tuple[Float32, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((1, 2, length, 4)).astype(np.float32) for length in lengths)


def _judged(past: Array, new: Array, present: Array, spec: AttentionSpec = _SPEC, declared: str = "float32") -> Verdict:
    inputs = AttentionInputs(query=new, key=new, value=new, past_key=past, past_value=past)
    outputs = {OutputRole.PRESENT_KEY: present}
    judged = judge_attention_outputs(spec, inputs, outputs, precision=find_precision(declared))
    return judged[OutputRole.PRESENT_KEY].verdict


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


def test_without_a_past_the_cache_is_the_new_entries() -> None:
    """Present outputs of an attention without a past are judged too; outputs that are not returned are not."""
    _, new = _arrays(5, 3)
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)
    inputs = AttentionInputs(query=new, key=new, value=new)
    precision = find_precision("float32")
    judged = judge_attention_outputs(spec, inputs, {OutputRole.PRESENT_KEY: new}, precision=precision)
    assert {role: found.verdict for role, found in judged.items()} == {OutputRole.PRESENT_KEY: Verdict.OK}
    judged = judge_attention_outputs(spec, inputs, {OutputRole.PRESENT_VALUE: np.zeros_like(new)}, precision=precision)
    assert judged[OutputRole.PRESENT_VALUE].verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("dtype", "declared", "stored", "verdict"),
    [
        (np.float64, "float32", np.float32, Verdict.OK),
        (np.float64, "float32", np.float16, Verdict.WRONG),
        (np.float64, "float64", np.float32, Verdict.WRONG),
        (np.float32, "float16", np.float16, Verdict.OK),
        (np.float32, "float32", np.float16, Verdict.WRONG),
        (np.float32, "tf32", np.float16, Verdict.WRONG),
        (np.float16, "float32", np.float16, Verdict.OK),
    ],
)
def test_a_copy_may_be_rounded_once_to_the_declared_format(
    dtype: type, declared: str, stored: type, verdict: Verdict
) -> None:
    """A cache in an arithmetic with fewer digits than the inputs is a copy rounded to it, and no other format."""
    past, new = (array.astype(dtype) * dtype(1.0001) for array in _arrays(5, 3))
    right = np.concatenate([past, new], axis=2)
    assert _judged(past, new, right.astype(stored).astype(dtype), declared=declared) is verdict


def test_the_diagnosis_names_the_rounding() -> None:
    """A rounded copy is right, and its record says to what it is rounded."""
    rng = np.random.default_rng(0)
    right = rng.standard_normal((1, 2, 3, 4))
    found = judge_copy("present_key", right.astype(np.float32).astype(np.float64), right, FloatFormat.FLOAT32)
    assert found.verdict is Verdict.OK
    assert found.diagnosis == (
        "present_key is the past followed by the new entries, rounded once to float32, the arithmetic that the "
        "runtime declares."
    )


def test_a_packed_cache_holds_keys_first() -> None:
    """onnxruntime's one present output: keys, then values; the other order is wrong."""
    past, new = _arrays(5, 3)
    inputs = AttentionInputs(query=new, key=new, value=2 * new, past_key=past, past_value=past + 1)
    cache = present_of(_SPEC, inputs)
    pair = [cache[OutputRole.PRESENT_KEY], cache[OutputRole.PRESENT_VALUE]]
    for order, verdict in ((pair, Verdict.OK), (pair[::-1], Verdict.WRONG)):
        outputs = {OutputRole.PRESENT: np.stack(order)}
        judged = judge_attention_outputs(_SPEC, inputs, outputs, precision=find_precision("float32"))
        assert judged[OutputRole.PRESENT].verdict is verdict
