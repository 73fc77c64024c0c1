"""The intermediate arrays of a block: each equals its definition, computed for one pair of query and key at a time."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.attention import stages as module
from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.oracle import HeadBlock, attend, head_blocks
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec
from sdpa_onnx.core.attention.stages import cut_block, stages_of
from tests.core.problems import BY_NAME, PROBLEMS, Problem

SEEN = [problem for problem in PROBLEMS if problem.name not in ("no-keys", "no-batch", "no-queries")]


def blocks(problem: Problem) -> list[HeadBlock]:
    return list(head_blocks(problem.case().spec, problem.inputs(spread=2.0, seed=1)))


@pytest.mark.parametrize("problem", SEEN, ids=lambda problem: problem.name)
def test_each_pair_follows_its_definition(problem: Problem) -> None:
    """Visibility, score, size of the products, slope of the softcap, logit, distance from the maximum, weight."""
    for block in blocks(problem):
        found = stages_of(block)
        for row, key in np.ndindex(*block.bias.shape):
            products = [block.scale * q * k for q, k in zip(block.query[row], block.key[key], strict=True)]
            score = math.fsum(products)
            capped = block.softcap * math.tanh(score / block.softcap) if block.softcap else score
            visible = block.bias[row, key] != -math.inf
            assert found.visible[row, key] == visible
            assert found.scores[row, key] == pytest.approx(score, rel=1e-12, abs=1e-12)
            assert found.products[row, key] == pytest.approx(math.fsum(map(abs, products)), rel=1e-12)
            if found.slope is not None:
                assert found.slope[row, key] == pytest.approx(1.0 - (capped / block.softcap) ** 2, abs=1e-12)
            logit = capped + block.bias[row, key] if visible else -math.inf
            assert found.logits[row, key] == pytest.approx(logit, rel=1e-12, abs=1e-12)
            below = float(found.logits[row].max()) - logit if visible else 0.0
            assert found.below[row, key] == pytest.approx(below, rel=1e-12, abs=1e-12)
            others = [math.exp(float(other) - logit) for other in found.logits[row]] if visible else [math.inf]
            assert found.weights[row, key] == pytest.approx(1.0 / math.fsum(others), rel=1e-12)
        assert (found.slope is None) == (not block.softcap)
        assert found.seen.tolist() == [any(column) for column in found.visible.T.tolist()]


@pytest.mark.parametrize("problem", SEEN, ids=lambda problem: problem.name)
def test_output_and_its_derivative_are_those_of_the_oracle(problem: Problem) -> None:
    """The output is the oracle's, and d output / d ln(scale) is what the oracle does when the scale moves."""
    spec, inputs = problem.case().spec, problem.inputs(spread=2.0, seed=1)
    step = 1e-5
    for block in blocks(problem):
        found = stages_of(block)
        more, less = (stages_of(replace(block, scale=block.scale * (1.0 + sign * step))).output for sign in (1, -1))
        np.testing.assert_allclose(found.per_scale, (more - less) / (2.0 * step), rtol=1e-6, atol=1e-8)
        output = attend(spec, inputs).output
        if output.ndim == 4:
            np.testing.assert_array_equal(found.output, output[block.batch, block.head, block.rows])


@pytest.mark.parametrize(("keys", "rows"), [(100, 10), (101, 9), (999, 1), (1001, 1), (5000, 1), (1, 1000)])
def test_a_block_is_cut_into_parts_of_so_many_elements(keys: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as fit, at least one; together they are the block, in order."""
    monkeypatch.setattr(module, "_PART_ELEMENTS", 1000)
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=2, is_causal=True)
    case = AttentionCase(spec=spec, q_seq_len=25, kv_seq_len=keys)
    (block,) = head_blocks(spec, draw_inputs(case))
    parts = list(cut_block(block))
    assert [part.rows.size for part in parts] == [min(rows, 25 - start) for start in range(0, 25, rows)]
    for field in ("rows", "query", "bias"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, field) for part in parts]), getattr(block, field))
    assert all(part.key is block.key and part.value is block.value for part in parts)


@pytest.mark.parametrize("name", ["no-keys", "no-queries"])
def test_a_block_without_pairs(name: str) -> None:
    """No key or no query: arrays without elements, and an output of zeros."""
    for block in blocks(BY_NAME[name]):
        found = stages_of(block)
        assert found.below.shape == found.weights.shape == found.visible.shape == block.bias.shape
        assert found.output.shape == (block.rows.size, block.value.shape[1])
        assert not found.output.any()
        assert [part.rows.size for part in cut_block(block)] == [block.rows.size] * bool(block.rows.size)
