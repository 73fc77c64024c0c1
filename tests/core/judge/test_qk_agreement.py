"""The judge of the scores: right arithmetics pass at every stage, faults of every stage do not."""

from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import AttentionInputs, numpy_dtype
from sdpa_onnx.core.attention.oracle import QkOutputMode, attend
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout
from sdpa_onnx.core.judge.qk_agreement import expect_qk, judge_qk
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.problems import BY_NAME, PROBLEMS

Array = np.ndarray

# Problems with at least one score.
_NAMES = [problem.name for problem in PROBLEMS if problem.name not in ("no-queries", "no-keys", "no-batch")]


def scores_in(dtype: Dtype, spec: AttentionSpec, inputs: AttentionInputs, mode: QkOutputMode) -> Array:
    """The stage in the storage type with sums in float32 at least: the output of a correct runtime."""
    storage = numpy_dtype(dtype)
    wide = np.float64 if dtype is Dtype.FLOAT64 else np.float32
    root = np.sqrt(abs(spec.scale_value)).astype(storage)
    sign = np.sign(spec.scale_value)
    query, key = (_heads(spec, inputs, field) for field in ("query", "key"))
    if inputs.past_key is not None:
        key = np.concatenate([inputs.past_key, key], axis=2)
    key = np.repeat(key, spec.heads_per_kv, axis=1)
    left, right = (query * root).astype(storage), (key * root).astype(storage)
    scores = (sign * (left.astype(wide) @ right.astype(wide).swapaxes(2, 3))).astype(storage)
    if mode is QkOutputMode.SCORES:
        return scores
    if spec.softcap:
        cap = storage.type(spec.softcap)
        scores = (cap * np.tanh((scores / cap).astype(wide))).astype(storage)
    if mode is QkOutputMode.AFTER_SOFTCAP:
        return scores
    exact = attend(spec, inputs, qk_mode=QkOutputMode.AFTER_MASK).qk
    capped = attend(spec, inputs, qk_mode=QkOutputMode.AFTER_SOFTCAP).qk
    assert exact is not None
    assert capped is not None
    with np.errstate(invalid="ignore"):
        bias = np.where(np.isneginf(exact), -np.inf, exact - capped).astype(storage)
    logits = (scores + bias).astype(storage)
    if mode is QkOutputMode.AFTER_MASK:
        return logits
    highest = logits.astype(wide).max(-1, keepdims=True)
    powers = np.exp(logits.astype(wide) - np.where(np.isfinite(highest), highest, 0.0))
    total = powers.sum(-1, keepdims=True)
    return (powers / np.where(total > 0.0, total, 1.0)).astype(storage)


def _heads(spec: AttentionSpec, inputs: AttentionInputs, field: str) -> Array:
    array = getattr(inputs, field)
    if spec.layout is Layout.BNSH:
        return array
    heads = spec.q_num_heads if field == "query" else spec.kv_num_heads
    return array.reshape(*array.shape[:2], heads, -1).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("mode", list(QkOutputMode), ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("name", _NAMES)
def test_right_scores_pass(name: str, mode: QkOutputMode) -> None:
    """Another order of evaluation, in four element types and at two spreads, lies inside the bound."""
    problem = BY_NAME[name]
    for dtype in Dtype:
        for spread in (0.3, 4.0):
            inputs = problem.inputs(spread=spread, dtype=dtype)
            spec = problem.case(dtype).spec
            expectation = expect_qk(spec, inputs, mode=mode, precision=find_precision(dtype))
            found = judge_qk(expectation, scores_in(dtype, spec, inputs, mode))
            assert found.verdict is Verdict.OK, (dtype, spread, found.diagnosis)
            assert found.max_bound_ratio < 1.0


def _judged(mode: QkOutputMode, actual_mode: QkOutputMode, *, name: str = "softcap-float-mask") -> Verdict:
    problem = BY_NAME[name]
    inputs, spec = problem.inputs(spread=2.0, dtype=Dtype.FLOAT32), problem.case(Dtype.FLOAT32).spec
    expectation = expect_qk(spec, inputs, mode=mode, precision=find_precision("float32"))
    return judge_qk(expectation, scores_in(Dtype.FLOAT32, spec, inputs, actual_mode)).verdict


@pytest.mark.parametrize("asked", list(QkOutputMode), ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("given", list(QkOutputMode), ids=lambda mode: mode.name.lower())
def test_every_stage_is_told_from_every_other(asked: QkOutputMode, given: QkOutputMode) -> None:
    """A runtime that swaps two modes is wrong in both."""
    assert (_judged(asked, given) is Verdict.OK) == (asked is given)


@pytest.mark.parametrize("mode", list(QkOutputMode), ids=lambda mode: mode.name.lower())
def test_just_inside_and_just_outside(mode: QkOutputMode) -> None:
    """An error of 0.99 of the bound passes, one of 1.01 does not, at any element."""
    problem = BY_NAME["bool-mask-causal"]
    inputs, spec = problem.inputs(), problem.case().spec
    expectation = expect_qk(spec, inputs, mode=mode, precision=find_precision("float32"))
    place = (0, 0, 1, 0)
    for share, verdict in ((0.99, Verdict.OK), (1.01, Verdict.WRONG)):
        actual = expectation.expected.copy()
        actual[place] += share * expectation.bound[place]
        assert judge_qk(expectation, actual).verdict is verdict


@pytest.mark.parametrize(
    ("alien", "says"), [(-3.4e38, "got -3.4e+38, expected -inf"), (np.nan, "got nan, expected -inf")]
)
def test_a_hidden_key_must_be_minus_infinity(alien: float, says: str) -> None:
    """The lowest finite number in its place is another number."""
    problem = BY_NAME["causal"]
    inputs, spec = problem.inputs(), problem.case().spec
    expectation = expect_qk(spec, inputs, mode=QkOutputMode.AFTER_MASK, precision=find_precision("float32"))
    actual = np.where(np.isneginf(expectation.expected), alien, expectation.expected)
    found = judge_qk(expectation, actual)
    hidden = int(np.isneginf(expectation.expected).sum())
    assert (found.verdict, found.not_finite) == (Verdict.WRONG, hidden)
    assert found.diagnosis == (
        f"{hidden} of {actual.size} scores are finite although the key is hidden, or not finite although it is "
        "visible, "
        f"first at (batch, head, query, key) (0, 0, 0, 1): {says}."
    )


def test_weights_of_a_masked_row_are_zero() -> None:
    """A row without a visible key contains neither NaN nor uniform weights."""
    problem = BY_NAME["all-hidden"]
    inputs, spec = problem.inputs(), problem.case().spec
    expectation = expect_qk(spec, inputs, mode=QkOutputMode.WEIGHTS, precision=find_precision("float32"))
    assert judge_qk(expectation, np.zeros_like(expectation.expected)).verdict is Verdict.OK
    assert judge_qk(expectation, np.full_like(expectation.expected, np.nan)).verdict is Verdict.WRONG
    assert judge_qk(expectation, np.full_like(expectation.expected, 1 / 6)).verdict is Verdict.WRONG


def test_a_score_beyond_its_format_may_be_infinite() -> None:
    """float16 cannot hold 70000; what it can hold must still be right."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1, scale=1.0)
    wide = np.array([250.0, 1.0], np.float16).reshape(1, 1, 2, 1)
    inputs = AttentionInputs(query=wide, key=np.float16(1.2) * wide, value=wide)
    expectation = expect_qk(spec, inputs, mode=QkOutputMode.SCORES, precision=find_precision("float16"))
    exact = expectation.expected.copy()
    assert exact[0, 0, 0, 0] > 65504
    exact[0, 0, 0, 0] = np.inf
    assert judge_qk(expectation, exact).verdict is Verdict.OK
    exact[0, 0, 1, 1] = np.inf
    assert judge_qk(expectation, exact).verdict is Verdict.WRONG


def test_another_shape_is_wrong() -> None:
    """The fourth output runs over all keys, past ones too."""
    problem = BY_NAME["past"]
    inputs, spec = problem.inputs(), problem.case().spec
    expectation = expect_qk(spec, inputs, mode=QkOutputMode.SCORES, precision=find_precision("float32"))
    found = judge_qk(expectation, expectation.expected[..., 3:])
    assert found.verdict is Verdict.WRONG
    assert found.diagnosis == "The scores have shape (2, 6, 4, 6), expected (2, 6, 4, 9)."


def test_a_wrong_scale_is_far_outside() -> None:
    """One percent of the scale is thousands of bounds."""
    problem = BY_NAME["plain"]
    inputs, spec = problem.inputs(spread=4.0), problem.case().spec
    expectation = expect_qk(spec, inputs, mode=QkOutputMode.SCORES, precision=find_precision("float32"))
    other = expect_qk(
        replace(spec, scale=1.01 * spec.scale_value),
        inputs,
        mode=QkOutputMode.SCORES,
        precision=find_precision("float32"),
    )
    found = judge_qk(expectation, other.expected)
    assert found.verdict is Verdict.WRONG
    assert found.max_bound_ratio > 1000.0
