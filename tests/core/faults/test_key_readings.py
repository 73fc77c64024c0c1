"""Keys in another order, of the step before or at another position: named by their cause, not by an arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import PRECISIONS
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype
from sdpa_onnx.core.faults.diagnosis import Explanation, explain
from sdpa_onnx.core.faults.fault_kind import on_blocks
from sdpa_onnx.core.faults.planted_faults import right_output
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.attentions import case
from tests.core.by_name import find_reading

Array = NDArray[np.generic]

_CAUSAL = case("1x200x200", head_dim=16, is_causal=True)
_CACHE = case("2x3x3", 150, head_dim=16, has_past=True, is_causal=True)


def _read(name: str, asked: AttentionCase, inputs: AttentionInputs) -> Array:
    right = {OutputRole.OUTPUT: right_output(asked.spec, inputs)}
    reading = find_reading(name)
    assert reading.applies(asked.spec)
    return on_blocks(reading.blocks)(asked.spec, inputs, right, np.random.default_rng(0))[OutputRole.OUTPUT]


@pytest.mark.parametrize("size", [16, 32, 64, 128])
@pytest.mark.parametrize("what", ["cache", "key"])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.FLOAT16])
def test_reversed_blocks_are_named(what: str, size: int, dtype: Dtype) -> None:
    """Errors as large as the values are explained by the order of the blocks, and are proven wrong."""
    asked = replace(_CAUSAL, dtype=dtype)
    inputs = draw_inputs(asked, spread=2.0)
    name = f"{what}-blocks-reversed-{size}"
    actual = _read(name, asked, inputs)
    found = explain(asked.spec, inputs, actual, precision=dtype.value)
    assert found is not None
    assert found.reading == name
    assert judge(expect(asked.spec, inputs, precision=PRECISIONS[dtype.value]), actual).verdict is Verdict.WRONG


@pytest.mark.parametrize("name", ["new-keys-missing", "newest-past-empty", "keys-reversed", "key-halves-swapped"])
def test_stale_cache_is_named(name: str) -> None:
    """New queries against a cache that lacks the newest entry, or whose order is another."""
    inputs = draw_inputs(_CACHE, spread=2.0)
    found = explain(_CACHE.spec, inputs, _read(name, _CACHE, inputs), precision="float32")
    assert found is not None
    assert found.reading == name


@pytest.mark.parametrize("name", [f"rotary-{a}-{b}" for a in ("halves", "neighbours") for b in ("ahead", "behind")])
def test_rotary_shift_is_named(name: str) -> None:
    """Queries that are turned by one position against the keys."""
    inputs = draw_inputs(_CAUSAL, spread=2.0)
    found = explain(_CAUSAL.spec, inputs, _read(name, _CAUSAL, inputs), precision="float32")
    assert found is not None
    assert found.reading == name
    assert "rotated by one position too " in found.says


def test_mask_of_the_next_head_is_named() -> None:
    """A mask that differs by head, used one head too early."""
    asked = case("2x5x40", head_dim=16, mask="float")
    mask = np.random.default_rng(0).standard_normal((1, 4, 5, 40)).astype(np.float32)
    inputs = replace(draw_inputs(asked, spread=2.0), attn_mask=mask)
    found = explain(asked.spec, inputs, _read("mask-next-head", asked, inputs), precision="float32")
    assert found == Explanation(says="each head uses the mask of the next one", reading="mask-next-head")


def _other_values(asked: AttentionCase, inputs: AttentionInputs) -> Array:
    return right_output(asked.spec, replace(inputs, value=inputs.value[:, :, ::-1]))


def _last_step(asked: AttentionCase, inputs: AttentionInputs) -> Array:
    return np.roll(right_output(asked.spec, inputs), 1, axis=2)


def _queries_of_the_other_half(asked: AttentionCase, inputs: AttentionInputs) -> Array:
    return right_output(asked.spec, replace(inputs, query=np.roll(inputs.query, 100, axis=2)))


def _noise(asked: AttentionCase, inputs: AttentionInputs) -> Array:
    right = right_output(asked.spec, inputs)
    return (right + np.random.default_rng(0).standard_normal(right.shape)).astype(right.dtype)


@pytest.mark.parametrize("wrong", [_other_values, _last_step, _queries_of_the_other_half, _noise])
@pytest.mark.parametrize("spread", [1.0, 4.0, 8.0, 30.0])
def test_large_errors_are_no_arithmetic(wrong: object, spread: float) -> None:
    """Errors of the size of the values are not called lower precision, however wide its bound is."""
    inputs = draw_inputs(_CAUSAL, spread=spread)
    found = explain(_CAUSAL.spec, inputs, wrong(_CAUSAL, inputs), precision="float32")  # type: ignore[operator]
    assert found is None or found.reading != "lower-precision"
