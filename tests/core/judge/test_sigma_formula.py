"""Sigma equals its formula, written out one term of each sum at a time, and the errors that right kernels make."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks
from sdpa_onnx.core.attention.precision import FloatFormat, Precision, find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.attention.stages import Stages, stages_of
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.judge.block_bound import BlockBound
from sdpa_onnx.core.judge.bounds import bound_stages
from sdpa_onnx.core.judge.sigma import ROUNDING_VARIANCE, BlockSigma, sigma_of
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.kernels import ARITHMETICS, KERNELS, run_kernel

Float64 = NDArray[np.float64]

PLAIN = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=64)
_EXACT, FLOAT32 = find_precision("float64"), find_precision("float32")
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


# --- Which rows are judged by sigma: limits in pairs ---


def head(query: Float64, key: Float64, value: Float64) -> HeadBlock:
    return HeadBlock(
        batch=0, head=0, rows=np.arange(query.shape[0]), query=query, key=key, value=value,
        bias=np.zeros((query.shape[0], key.shape[0])), scale=1.0, softcap=0.0,
    )  # fmt: skip


def sigma_in(block: HeadBlock, precision: Precision) -> BlockSigma:
    stages = stages_of(block)
    return sigma_of(stages, bound_stages(stages, precision), precision)


@pytest.mark.parametrize(("sigma", "is_judged"), [(0.249, True), (0.251, False)])
def test_a_row_is_judged_up_to_a_quarter_of_uncertainty(sigma: float, is_judged: bool) -> None:
    """The logit of a key with weight has a sigma of at most 0.25; only stored scores are rounded here."""
    score = sigma / math.sqrt(0.18) / 2.0**-8
    query, key, value = np.ones((2, 1)), np.array([[score], [score - 1.0]]), np.array([[1.0], [3.0]])
    query[1] = 0.5  # the other row has half of the uncertainty
    assert sigma_in(head(query, key, value), ONE_STAGE["scores"]).judged.tolist() == [is_judged, True]


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
@pytest.mark.parametrize(("share", "is_judged"), [(0.99, False), (1.01, True)])
def test_an_uncertain_key_far_below_the_maximum_does_not_matter(sigma: float, share: float, is_judged: bool) -> None:
    """8 and six sigmas below: rounding does not lift it to where it has weight. Only operands are rounded here."""
    below = share * (8.0 + 6.0 * sigma)
    # Two products that cancel, each rounded twice.
    size = sigma / math.sqrt(4 * 0.18) / 2.0**-8
    key = np.array([[0.0, 0.0], [size - below / 2.0, -size - below / 2.0]])
    found = sigma_in(head(np.ones((1, 2)), key, np.array([[1.0], [3.0]])), ONE_STAGE["operand"])
    assert found.judged.tolist() == [is_judged]


def straight(keys: int, columns: int = 4) -> Float64:
    """Evenly spaced values in every column."""
    return 1.0 + 0.1 * np.arange(1, columns + 1) + 0.02 * np.arange(keys)[:, None]


def rough(keys: int, columns: int) -> Float64:
    return np.random.default_rng(0).standard_normal((keys, columns))


def is_regular(value: Float64, logits: Float64 | None = None) -> bool:
    """Whether the row of these logits (equal ones by default) is left to the bound."""
    keys = value.shape[0]
    logits = np.zeros(keys) if logits is None else logits
    found = sigma_in(head(np.ones((1, 1)), logits[:, None], value), FLOAT32)
    assert found.judged.tolist() == [not found.regular[0]]
    return bool(found.regular[0])


def test_equal_weights_on_evenly_spaced_values_are_regular() -> None:
    """From eight keys; a weight that is larger by 1e-4 of its size still counts as equal."""
    assert is_regular(straight(8))
    assert not is_regular(straight(7))
    assert not is_regular(rough(20, 4))
    for share, expected in ((0.9, True), (1.1, False)):
        largest = 1.0 + share * 1e-4
        logits = np.zeros(20)
        logits[3] = math.log(largest * 19.0 / (20.0 - largest))
        assert is_regular(straight(20), logits) is expected


@pytest.mark.parametrize("keys", [20, 21])
def test_values_count_as_evenly_spaced_up_to_a_fiftieth(keys: int) -> None:
    """Bends of 0.02 of the median size, in more than half of the columns and of the entries that are not 0."""
    for bend, expected in ((0.0199, True), (0.0201, False)):
        signs = np.where(np.arange(keys) % 2, 1.0, -1.0)[:, None]
        assert is_regular(3.0 * (1.0 + bend / 4.0 * signs * np.ones(4))) is expected
    assert is_regular(np.hstack([straight(keys, 3), rough(keys, 2)]))
    assert not is_regular(np.hstack([straight(keys, 2), rough(keys, 2)]))
    values = straight(keys)
    half = (keys - 2) // 2
    values[half + 3 :] = rough(keys, 4)[half + 3 :]  # bends of the entries up to half + 1 are 0
    assert is_regular(values)
    values[half - 1 :] = rough(keys, 4)[half - 1 :]
    assert not is_regular(values)


def test_entries_of_zero_say_nothing() -> None:
    """Padding of zeros neither makes values regular nor keeps them from it."""
    values = np.vstack([straight(10), np.zeros((30, 4))])
    assert is_regular(values)
    assert not is_regular(np.vstack([rough(10, 4), np.zeros((30, 4))]))


def test_the_first_64_visible_keys_decide() -> None:
    """What comes later is not looked at."""
    assert is_regular(np.vstack([straight(64), rough(90, 4)]))
    assert not is_regular(np.vstack([rough(64, 4), straight(400)]))


def test_evenly_spaced_queries_on_evenly_spaced_keys_are_regular() -> None:
    """If most keys are, each query for itself."""
    query = np.vstack([straight(9, 1).T, rough(9, 1).T])
    for regular_keys, expected in ((6, True), (5, False)):
        key = np.vstack([straight(9, regular_keys).T, rough(9, 10 - regular_keys).T])
        found = sigma_in(head(0.1 * query, key, rough(10, 3)), FLOAT32)
        assert found.regular.tolist() == [expected, False]
        assert found.judged.tolist() == [not expected, True]
