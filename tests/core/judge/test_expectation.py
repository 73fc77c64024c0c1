"""Blocks of several heads are computed together: the expectation is the same to the bit, and no array grows large."""

import numpy as np
import pytest

from sdpa_onnx.core.attention import stages
from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import head_blocks
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.random_cases import RandomCase, draw_case
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec
from sdpa_onnx.core.judge.expectation import Expectation, expect

_FLOAT32 = find_precision("float32")
_BLOCKS = ("bounds", "sigmas", "directions")


def _arrays(expectation: Expectation) -> list[np.ndarray]:
    parts = [part for name in _BLOCKS for part in getattr(expectation, name)]
    return [np.asarray(getattr(part, field)) for part in parts for field in type(part).__slots__]


@pytest.mark.parametrize("number", range(0, 400, 8))
def test_stacked_heads_are_computed_as_single_ones(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any mask, window, past, softcap, NaN: all bounds, sigmas and directions are equal to the bit."""
    case: RandomCase = draw_case(3, number)
    together = expect(case.case.spec, case.inputs, precision=_FLOAT32)
    monkeypatch.setattr(stages, "_fits", lambda *_: False)
    alone = expect(case.case.spec, case.inputs, precision=_FLOAT32)
    assert [place[:2] for place in together.blocks] == [place[:2] for place in alone.blocks]
    for ours, theirs in zip(_arrays(together), _arrays(alone), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def _inputs(heads: int, length: int) -> tuple[AttentionSpec, AttentionInputs]:
    spec = AttentionSpec(q_num_heads=heads, kv_num_heads=1, head_dim=4, is_causal=True)
    case = AttentionCase(spec=spec, batch_size=2, q_seq_len=length, kv_seq_len=length)
    return spec, draw_inputs(case)


def test_heads_and_samples_with_one_bias_are_one_stack() -> None:
    """Without a mask, all heads of all samples have the same bias."""
    stacks = list(stages.stack_blocks(head_blocks(*_inputs(3, 5))))
    assert [(len(group), stack.query.shape) for group, stack in stacks] == [(6, (6, 5, 4))]


@pytest.mark.parametrize(("elements", "sizes"), [(75, [3, 3]), (74, [2, 2, 2])])
def test_a_stack_is_no_larger_than_a_part(elements: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 5 queries and 5 keys: 25 elements each."""
    monkeypatch.setattr(stages, "_PART_ELEMENTS", elements)
    assert [len(group) for group, _ in stages.stack_blocks(head_blocks(*_inputs(3, 5)))] == sizes


@pytest.mark.parametrize(("shape", "sizes"), [((1, 1, 5, 5), [4]), ((2, 1, 5, 5), [2, 2]), ((1, 2, 5, 5), [1] * 4)])
def test_blocks_of_different_masks_are_not_stacked(shape: tuple[int, ...], sizes: list[int]) -> None:
    """A mask of each sample parts the samples, one of each head all blocks."""
    spec, inputs = _inputs(2, 5)
    masked = AttentionInputs(query=inputs.query, key=inputs.key, value=inputs.value, attn_mask=np.ones(shape, bool))
    assert [len(group) for group, _ in stages.stack_blocks(head_blocks(spec, masked))] == sizes
