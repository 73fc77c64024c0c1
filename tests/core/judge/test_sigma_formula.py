"""Sigma equals its formula, written out one term of each sum at a time, and the errors that right kernels make."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import head_blocks
from sdpa_onnx.core.attention.precision import FloatFormat, Precision, find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.attention.stages import Stages, stages_of
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.judge.bounds import BlockBound, bound_stages
from sdpa_onnx.core.judge.sigma import ROUNDING_VARIANCE, sigma_of
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.kernels import ARITHMETICS, KERNELS, run_kernel

Float64 = NDArray[np.float64]

PLAIN = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=64)
_EXACT = find_precision("float64")
# Each stage alone in bfloat16, everything else exact: no term of the formula hides behind a larger one.
ONE_STAGE = {
    name: replace(_EXACT, **{name: FloatFormat.BFLOAT16})
    for name in ("operand", "prescaled", "score_sum", "scores", "softmax", "weights", "output_sum", "output")
}


def squared_partial_sums(terms: Float64) -> float:
    """Sum of all squared partial sums of an ordered sum from those after each eighth of its terms (METHOD A.4)."""
    edges = np.linspace(0, terms.size, min(8, terms.size) + 1).astype(int)
    total = 0.0
    for start, stop in itertools.pairwise(edges):
        before, after = float(terms[:start].sum()), float(terms[:stop].sum())
        total += (stop - start) * (before**2 + before * after + after**2) / 3.0
    return total + terms.size / (6.0 * 8.0) * float((terms**2).sum())


def logit_variance(stages: Stages, precision: Precision, row: int, key: int) -> float:
    """Variance of one computed logit in units of K, by METHOD A.4."""
    block = stages.block
    operand = 0.0 if precision.operand is None else precision.operand.unit_roundoff
    softmax, stored = precision.softmax.unit_roundoff, precision.scores.unit_roundoff
    terms = block.scale * block.query[row] * block.key[key]
    score = float(terms.sum())
    squares = float((terms**2).sum())
    variance = precision.score_sum.unit_roundoff**2 * (squared_partial_sums(terms) + squares)
    variance += 2.0 * (operand**2 + precision.prescaled.unit_roundoff**2) * squares
    variance += (2.0 * softmax**2 + stored**2) * score**2
    if block.softcap:
        slope = 1.0 / math.cosh(score / block.softcap) ** 2
        capped = block.softcap * math.tanh(score / block.softcap)
        variance *= slope**2
        # A division and a product in the softmax's format, tanh with the error of exp, and both results stored.
        variance += ((2.0 + 4.0) * softmax**2 + 2.0 * stored**2) * capped**2
    if block.bias[np.isfinite(block.bias)].any():
        variance += (softmax**2 + stored**2) * float(stages.logits[row, key]) ** 2
    below = float(stages.logits[row].max() - stages.logits[row, key])
    return variance + softmax**2 * (below**2 + 4.0) + precision.weights.unit_roundoff**2


def written_out(stages: Stages, bound: BlockBound, precision: Precision) -> Float64:
    """Sigma of every output of a block, by METHOD A.4."""
    operand = 0.0 if precision.operand is None else precision.operand.unit_roundoff
    sigma = np.zeros_like(stages.output)
    for row, column in np.ndindex(*sigma.shape):
        weights, output = stages.weights[row], stages.output[row, column]
        keys = np.flatnonzero(weights)
        terms = weights * stages.block.value[:, column]
        squares = float((terms**2).sum())
        variance = sum(
            weights[key] ** 2
            * logit_variance(stages, precision, row, int(key))
            * (stages.block.value[key, column] - output) ** 2
            for key in keys
        )
        # Zero terms add no rounding, but they count where the partial sums are taken.
        partial = squared_partial_sums(terms) + (keys.size - terms.size) / (6.0 * 8.0) * squares
        variance += precision.output_sum.unit_roundoff**2 * (partial + squares + keys.size / 3.0 * output**2)
        variance += (4.0 * precision.softmax.unit_roundoff**2 + precision.output.unit_roundoff**2) * output**2
        variance += 2.0 * operand**2 * squares
        sigma[row, column] = math.sqrt(0.18 * variance + 0.3 / 4.0 * bound.underflow[row, column] ** 2)
    return sigma


SPECS = {
    "plain": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=20, v_head_dim=3),
    "narrow": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=3, scale=-1.5),
    "causal": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4, is_causal=True),
    "softcap": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, softcap=1.5),
    "mask": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, mask=MaskKind.FLOAT),
    "softcap, mask": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4, softcap=2.0, mask=MaskKind.FLOAT),
}


@pytest.mark.parametrize("stage", ONE_STAGE)
@pytest.mark.parametrize("name", SPECS)
def test_sigma_is_its_formula(name: str, stage: str) -> None:
    """Term by term, for each stage that rounds, with and without a softcap and a mask; float32 sums are near enough."""
    spec, precision = SPECS[name], ONE_STAGE[stage]
    case = AttentionCase(spec=spec, q_seq_len=5, kv_seq_len=19, dtype=Dtype.FLOAT64)
    (block,) = head_blocks(spec, draw_inputs(case, spread=1.5, seed=7))
    block = replace(block, value=100.0 * block.value)  # not near the largest entry, which sigma divides by
    stages = stages_of(block)
    bound = bound_stages(stages, precision)
    found = sigma_of(stages, bound, precision)
    assert found.judged.all()
    # A row that sees one key copies it: its variance from the logits is 0, and float64 leaves noise there.
    noise = 1e-6 * float(found.sigma.max())
    np.testing.assert_allclose(found.sigma, written_out(stages, bound, precision), rtol=2e-5, atol=noise)


def test_the_variance_of_a_rounding_error() -> None:
    """Numbers with log-uniform significands, rounded to float16: the mean square of the error is 0.18 u^2."""
    rng = np.random.default_rng(0)
    numbers = 2.0 ** rng.uniform(-3.0, 3.0, 200_000)
    error = (numbers.astype(np.float16) - numbers) / numbers / 2.0**-11
    assert float((error**2).mean()) == pytest.approx(ROUNDING_VARIANCE, rel=0.02)


def kappas(inputs: list[AttentionInputs], dtype: str, kernel: str) -> list[float]:
    found = []
    for given in inputs:
        actual = run_kernel(KERNELS[kernel], PLAIN, given, ARITHMETICS[dtype])
        agreement = judge(expect(PLAIN, given, precision=find_precision(dtype)), actual)
        assert agreement.verdict is Verdict.OK, agreement.diagnosis
        found.append(agreement.kappa)
    return found


@pytest.mark.parametrize(
    ("dtype", "kernel", "keys"),
    [("float32", "sequential", 512), ("float16", "prescaled", 96), ("bfloat16", "prescaled", 96)],
)
def test_the_roughest_right_kernel_has_errors_of_one_sigma(dtype: str, kernel: str, keys: int) -> None:
    """Where every rounding that is declared happens, the root mean square error is sigma, within a tenth."""
    case = AttentionCase(spec=PLAIN, q_seq_len=32, kv_seq_len=keys, dtype=Dtype(dtype))
    inputs = [draw_inputs(case, seed=seed) for seed in range(6)]
    assert float(np.mean(kappas(inputs, dtype, kernel))) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("size", [1e-5, 1e-6])
def test_outputs_of_a_few_subnormal_steps_have_errors_of_one_sigma(size: float) -> None:
    """float16 has steps of 2^-24 near zero; rounding to them is the only error, and it is legitimate."""
    inputs = draw_inputs(AttentionCase(spec=PLAIN, q_seq_len=32, kv_seq_len=96, dtype=Dtype.FLOAT16), seed=1)
    tiny = replace(inputs, value=(inputs.value.astype(np.float32) * size).astype(np.float16))
    for kernel in KERNELS:
        (kappa,) = kappas([tiny], "float16", kernel)
        assert kappa == pytest.approx(1.0, abs=0.1), kernel
