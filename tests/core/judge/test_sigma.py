"""Sigma: as large as the errors of right kernels in every convention and format; silent where it cannot know."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import head_blocks
from sdpa_onnx.core.attention.precision import PRECISIONS, find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.attention.stages import stages_of
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.judge.bounds import bound_stages
from sdpa_onnx.core.judge.sigma import BlockSigma, sigma_of
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.kernels import ARITHMETICS, KERNELS, run_kernel
from tests.core.problems import BY_NAME, PROBLEMS, Problem

Array = NDArray[Any]
FLOAT32 = find_precision("float32")
PLAIN = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=64)


def sigmas(spec: AttentionSpec, inputs: AttentionInputs, precision: str) -> list[BlockSigma]:
    found = []
    for block in head_blocks(spec, inputs):
        stages = stages_of(block)
        bound = bound_stages(stages, find_precision(precision))
        found.append(sigma_of(stages, bound, find_precision(precision)))
    return found


def judged(spec: AttentionSpec, inputs: AttentionInputs, precision: str, kernel: str = "naive") -> Agreement:
    actual = run_kernel(KERNELS[kernel], spec, inputs, ARITHMETICS[precision])
    return judge(expect(spec, inputs, precision=find_precision(precision)), actual)


# --- Calibration ---


@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("precision", ["float64", "float32", "tf32", "float16", "bfloat16"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_right_errors_are_about_one_sigma(kernel: str, precision: str, spread: float) -> None:
    """Kappa of every order of evaluation lies within a factor of a few of one, and no error is far out."""
    spec = replace(PLAIN, is_causal=True)
    dtype = Dtype.FLOAT32 if precision == "tf32" else Dtype(precision)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=96, dtype=dtype), spread=spread, seed=1)
    found = judged(spec, inputs, precision, kernel)
    assert found.kappa < 1.6
    assert found.max_z < 8.0
    # Plain float64 computes as the oracle does, down to the last bit.
    assert (found.kappa or 0.0) > 0.2 or precision == "float64"
    assert found.statistical_rows == found.total_rows == 192


def test_sequential_sums_are_the_roughest() -> None:
    """Sigma assumes an ordered sum: there kappa is closest to one in float32."""
    inputs = draw_inputs(AttentionCase(spec=PLAIN, q_seq_len=32, kv_seq_len=1024), seed=1)
    assert 0.6 < judged(PLAIN, inputs, "float32", "sequential").kappa < 1.4


def test_cancelling_scores_widen_sigma() -> None:
    """Products whose halves cancel pass through large partial sums, and sigma knows."""
    inputs = draw_inputs(AttentionCase(spec=PLAIN, q_seq_len=32, kv_seq_len=128), seed=1)
    query, key = np.abs(inputs.query) * 4, np.abs(inputs.key) * 4
    key[..., 32:] *= -1
    cancelling = replace(inputs, query=query, key=key)
    assert 0.2 < judged(PLAIN, cancelling, "float32", "sequential").kappa < 1.6
    plain, wide = (sigmas(PLAIN, given, "float32")[0].sigma for given in (inputs, cancelling))
    assert np.median(wide) > 3 * np.median(plain)


@pytest.mark.parametrize("name", ["float-mask-causal-window", "softcap-float-mask", "scale-negative", "lengths"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_conventions_keep_their_calibration(name: str, precision: str) -> None:
    """Masks, softcap, windows, lengths and a negative scale: errors of right kernels stay near sigma."""
    problem = BY_NAME[name]
    for kernel in KERNELS:
        inputs = problem.inputs(seed=3, dtype=Dtype(precision))
        found = judged(problem.case(Dtype(precision)).spec, inputs, precision, kernel)
        assert found.kappa < 2.0, kernel


# --- Every convention gives numbers ---


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_sigma_is_a_number_at_most_the_bound(problem: Problem, precision: str) -> None:
    """Finite, not negative, 0 where a row is not judged, and never above what is proved possible."""
    spec = problem.case().spec
    for block in head_blocks(spec, problem.inputs(spread=4.0)):
        stages = stages_of(block)
        bound = bound_stages(stages, find_precision(precision))
        found = sigma_of(stages, bound, find_precision(precision))
        assert np.isfinite(found.sigma).all()
        assert (found.sigma >= 0).all()
        assert (found.sigma[~found.judged] == 0).all()
        assert (found.sigma <= bound.bound).all()
        assert (found.hidden == ~stages.visible.any(1)).all()
        assert not (found.hidden & found.judged).any()


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1e30, 1e200])
@pytest.mark.parametrize("field", ["query", "value"])
def test_huge_and_tiny_inputs_raise_no_warning(field: str, size: float) -> None:
    """Whatever overflows is left to the bound, without a warning and without a number that is none."""
    inputs = draw_inputs(AttentionCase(spec=PLAIN, q_seq_len=8, kv_seq_len=20, dtype=Dtype.FLOAT64))
    inputs = replace(inputs, **{field: getattr(inputs, field) * size})
    for precision in PRECISIONS:
        for found in sigmas(PLAIN, inputs, precision):
            assert np.isfinite(found.sigma).all()


def test_a_poisoned_hidden_key_changes_no_sigma() -> None:
    """What nobody sees has no say, be it 1e30."""
    spec = replace(PLAIN, mask=MaskKind.BOOL)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=4, kv_seq_len=20))
    inputs = replace(inputs, attn_mask=np.arange(20) < 17)
    key, value = inputs.key.copy(), inputs.value.copy()
    key[:, :, 18], value[:, :, 18] = 1e15, 1e30
    for before, after in zip(
        sigmas(spec, inputs, "float64"),
        sigmas(spec, replace(inputs, key=key, value=value), "float64"),
        strict=True,
    ):
        np.testing.assert_allclose(after.sigma, before.sigma, rtol=1e-5)
        assert after.judged.all()


def test_one_hot_values_read_out_tiny_weights() -> None:
    """Values that are 1 at one key yield the weights themselves: those of 1e-10 have a sigma of their own size."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=16, v_head_dim=16)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=64, kv_seq_len=16), spread=8.0, seed=3)
    one_hot = replace(inputs, value=np.eye(16, dtype=np.float32)[None, None])
    for kernel in KERNELS:
        found = judged(spec, one_hot, "float32", kernel)
        assert found.verdict is Verdict.OK, found.diagnosis
    (only,) = sigmas(spec, one_hot, "float32")
    (block,) = head_blocks(spec, one_hot)
    weights = stages_of(block).weights
    assert weights.min() < 1e-10
    assert (only.sigma[weights < 1e-10] < 1e-5 * weights[weights < 1e-10]).all()


def test_keys_that_tf32_rounds_alike_are_no_finding() -> None:
    """Every key just below a midpoint: all queries see a scale that is 0.05 % too small, and that is legitimate."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1, v_head_dim=8)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=64, kv_seq_len=8), spread=2.0, seed=1)
    key = np.array([1, -1, 2, -2, 0.5, -0.5, 4, -4]) * (1 + 0.98 * 2.0**-11)
    inputs = replace(inputs, key=key.astype(np.float32).reshape(1, 1, 8, 1))
    found = judged(spec, inputs, "tf32")
    assert found.findings == ()
    assert found.verdict is not Verdict.WRONG
    wrong = replace(spec, scale=1.01)
    actual = run_kernel(KERNELS["naive"], wrong, inputs, ARITHMETICS["tf32"])
    assert judge(expect(spec, inputs, precision=find_precision("tf32")), actual).findings[0].name == "scale"


# --- Rows that sigma is silent on ---


def test_uncertain_logits_are_left_to_the_bound() -> None:
    """In bfloat16 with logits near 100 two right kernels differ by the size of the values: ill-conditioned."""
    inputs = draw_inputs(AttentionCase(spec=PLAIN, q_seq_len=16, kv_seq_len=64, dtype=Dtype.BFLOAT16), spread=200.0)
    found = judged(PLAIN, inputs, "bfloat16")
    assert found.statistical_rows < found.total_rows / 2
    wide = replace(inputs, query=(inputs.query.astype(np.float32) * 20).astype(inputs.query.dtype))
    silent = judged(PLAIN, wide, "bfloat16")
    assert silent.verdict is Verdict.ROUNDING_LEVEL
    assert (silent.kappa, silent.max_z, silent.statistical_rows) == (None, None, 0)
    assert silent.diagnosis.endswith("of it; the inputs are ill-conditioned, so only the bound was checked.")


@pytest.mark.parametrize("shape", [np.ones, lambda count: 0.3 + 0.01 * np.arange(count)], ids=["constant", "evenly"])
def test_regular_values_under_equal_weights_are_left_to_the_bound(shape: Any) -> None:
    """Their roundings share a sign: a right sum in order would be tens of sigmas off."""
    inputs = draw_inputs(AttentionCase(spec=PLAIN, q_seq_len=4, kv_seq_len=1000))
    value = np.broadcast_to(0.1 * shape(1000)[:, None], inputs.value.shape).astype(np.float32)
    found = judged(PLAIN, replace(inputs, query=np.zeros_like(inputs.query), value=value), "float32", "sequential")
    assert found.verdict is Verdict.ROUNDING_LEVEL
    assert found.diagnosis.endswith("of it; the inputs are constant or evenly spaced, so only the bound was checked.")
    # The same values under random weights, and random values under equal weights, are judged.
    for field, array in (("value", value), ("query", np.zeros_like(inputs.query))):
        assert judged(PLAIN, replace(inputs, **{field: array}), "float32").statistical_rows == 8


def test_regular_queries_on_regular_keys_are_left_to_the_bound() -> None:
    """Every product of a row is the same number."""
    inputs = draw_inputs(AttentionCase(spec=PLAIN, q_seq_len=4, kv_seq_len=10))
    query, key = np.full_like(inputs.query, 1.1), inputs.key[..., :1] * np.ones_like(inputs.key)
    assert judged(PLAIN, replace(inputs, query=query, key=key), "float32").statistical_rows == 0
    assert judged(PLAIN, replace(inputs, query=query), "float32").statistical_rows == 8


def test_hidden_rows_and_exact_rows_are_no_doubt() -> None:
    """Nothing visible: nothing to judge and nothing wrong; values of zero are exact."""
    problem = BY_NAME["all-hidden"]
    inputs = problem.inputs(dtype=Dtype.FLOAT32)
    found = judged(problem.case(Dtype.FLOAT32).spec, inputs, "float32")
    assert (found.verdict, found.kappa, found.statistical_rows) == (Verdict.OK, None, 0)
    zero = draw_inputs(AttentionCase(spec=PLAIN, q_seq_len=4, dtype=Dtype.FLOAT64))
    found = judged(PLAIN, replace(zero, value=np.zeros_like(zero.value)), "float64")
    assert (found.verdict, found.kappa) == (Verdict.OK, None)


# --- Properties ---

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))


@st.composite
def attentions(draw: st.DrawFn) -> tuple[AttentionSpec, AttentionInputs, str]:
    """Any small attention in any format, with its inputs."""
    queries, keys, head_dim, width = draw(SIZES)
    kv_num_heads = draw(st.integers(1, 2))
    precision = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
    spec = AttentionSpec(
        q_num_heads=kv_num_heads * draw(st.integers(1, 2)),
        kv_num_heads=kv_num_heads,
        head_dim=head_dim,
        v_head_dim=width,
        is_causal=draw(st.booleans()),
        left_window=draw(st.integers(-1, 3)),
        softcap=draw(st.sampled_from([0.0, 0.5, 30.0])),
        scale=draw(st.sampled_from([0.0, -0.3, 0.125, 1.7])),
        mask=draw(st.sampled_from([MaskKind.NONE, MaskKind.BOOL, MaskKind.FLOAT])),
    )
    case = AttentionCase(spec=spec, q_seq_len=queries, kv_seq_len=keys, dtype=Dtype(precision))
    inputs = draw_inputs(case, spread=draw(st.sampled_from([0.1, 1.0, 10.0])), seed=draw(st.integers(0, 2**20)))
    return spec, inputs, precision


@settings(max_examples=60)
@given(attention=attentions(), kernel=st.sampled_from(sorted(KERNELS)))
def test_no_right_kernel_is_wrong_or_suspicious(attention: tuple[Any, ...], kernel: str) -> None:
    """Bound and sigma hold for any order of evaluation of any small attention."""
    spec, inputs, precision = attention
    found = judged(spec, inputs, precision, kernel)
    assert found.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL), found.diagnosis


@settings(max_examples=40)
@given(attention=attentions(), exponent=st.integers(-4, 4))
def test_a_power_of_two_on_the_values_changes_no_verdict(attention: tuple[Any, ...], exponent: int) -> None:
    """Bound, sigma and errors scale alike: the verdict has no unit."""
    spec, inputs, _ = attention
    inputs = AttentionInputs(
        **{name: a if a.dtype == bool else a.astype(np.float32) for name, a in inputs.named().items()}
    )
    scaled = replace(inputs, value=inputs.value * np.float32(2.0**exponent))
    actual = run_kernel(KERNELS["naive"], spec, inputs, ARITHMETICS["float32"])
    for touched in (1.0, 1.0 + 1e-6, 1.0 + 1e-3):
        actual[0, 0, 0] *= np.float32(touched)
        before = judge(expect(spec, inputs, precision=FLOAT32), actual)
        after = judge(expect(spec, scaled, precision=FLOAT32), actual * np.float32(2.0**exponent))
        assert after.verdict is before.verdict
        assert after.kappa == (None if before.kappa is None else pytest.approx(before.kappa, rel=1e-3, abs=1e-9))


@settings(max_examples=40)
@given(attention=attentions(), seed=st.integers(0, 2**20))
def test_the_order_of_heads_changes_no_verdict(attention: tuple[Any, ...], seed: int) -> None:
    """Key heads permuted with their query heads and outputs: the same evidence."""
    spec, inputs, precision = attention
    order = np.random.default_rng(seed).permutation(spec.kv_num_heads)
    query_order = (order[:, None] * spec.heads_per_kv + np.arange(spec.heads_per_kv)).ravel()
    actual = run_kernel(KERNELS["naive"], spec, inputs, ARITHMETICS[precision])
    turned = replace(inputs, query=inputs.query[:, query_order], key=inputs.key[:, order], value=inputs.value[:, order])
    before = judge(expect(spec, inputs, precision=find_precision(precision)), actual)
    after = judge(expect(spec, turned, precision=find_precision(precision)), actual[:, query_order])
    assert after.verdict is before.verdict
    assert after.kappa == (None if before.kappa is None else pytest.approx(before.kappa, rel=1e-6))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**20), factor=st.sampled_from([1.0, 1.0 + 1e-5, 1.002, 1.1]))
def test_the_order_of_keys_changes_no_verdict(seed: int, factor: float) -> None:
    """Keys permuted with their values and mask: sigma's partial sums move a little, the verdict does not."""
    spec = replace(PLAIN, mask=MaskKind.BOOL)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=12, kv_seq_len=24), seed=seed)
    order = np.random.default_rng(seed).permutation(24)
    turned = replace(
        inputs,
        key=inputs.key[:, :, order],
        value=inputs.value[:, :, order],
        attn_mask=None if inputs.attn_mask is None else inputs.attn_mask[..., order],
    )
    wrong = replace(spec, scale=spec.scale_value * factor)
    actual = run_kernel(KERNELS["naive"], wrong, inputs, ARITHMETICS["float32"])
    before, after = (judge(expect(spec, given, precision=FLOAT32), actual) for given in (inputs, turned))
    assert after.verdict is before.verdict
    assert after.kappa == (None if before.kappa is None else pytest.approx(before.kappa, rel=0.2))
