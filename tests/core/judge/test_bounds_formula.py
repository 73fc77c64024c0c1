"""The proven bound equals its formula, written out one element and one rounding at a time."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks
from sdpa_onnx.core.attention.precision import FloatFormat, Precision, find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.attention.stages import Stages, stages_of
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.judge.block_bound import overflow_limit
from sdpa_onnx.core.judge.bounds import bound_stages, lifted
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.problems import BY_NAME

Float64 = NDArray[np.float64]

_EXACT = find_precision("float64")
# Each stage alone in bfloat16, everything else exact: no rounding hides behind a larger one.
PRECISIONS = {
    "softmax in float32": replace(_EXACT, softmax=FloatFormat.FLOAT32),
    "bfloat16": find_precision("bfloat16"),
    "float16-accumulation": find_precision("float16-accumulation"),
    **{
        name: replace(_EXACT, **{name: FloatFormat.BFLOAT16})
        for name in ("operand", "prescaled", "score_sum", "scores", "softmax", "weights", "output_sum", "output")
    },
}


def of_a_sum(terms: int, unit: float) -> float:
    """gamma_n, and twice n u where it is no bound (METHOD A.3)."""
    return terms * unit / (1.0 - terms * unit) if terms * unit < 0.5 else 2.0 * terms * unit


def error_of_logit(stages: Stages, precision: Precision, row: int, key: int) -> float:
    """E_ij, with every rounding after the product applied to the computed score (decision 0003)."""
    block = stages.block
    query, other = block.query[row], block.key[key]
    softmax, stored = precision.softmax.unit_roundoff, precision.scores.unit_roundoff
    prescaled, operand = (
        precision.prescaled.unit_roundoff,
        precision.operand.unit_roundoff if precision.operand else 0.0,
    )
    score = abs(block.scale * float(query @ other))
    size = abs(block.scale) * float(np.abs(query) @ np.abs(other))
    # A sum, and four factors: two operands, each rounded when it is scaled and when it enters the product.
    factors = of_a_sum(query.size, precision.score_sum.unit_roundoff) + 2.0 * operand + 2.0 * prescaled
    error = math.expm1(factors) * size
    # Scaled operands that underflow: an absolute error, times the other operand.
    error += precision.prescaled.tiny * math.sqrt(abs(block.scale)) * float(np.abs(query).sum() + np.abs(other).sum())
    # The scale is rounded (as two factors, or as one number of the softmax's format) and multiplied, the result stored.
    error += (2.0 * prescaled + 2.0 * softmax + stored) * (score + error)
    if block.softcap:  # division, tanh, product, stored
        error += ((2.0 + precision.exp_units) * softmax + stored) * (score + error)
    finite = np.where(np.isfinite(block.bias), np.abs(block.bias), 0.0)
    if finite.any():  # added, stored
        error += (softmax + stored) * (score + error + float(finite[row, key]))
    # The maximum is subtracted, exp, the weight stored.
    error = error * (1.0 + 2.0 * softmax) + softmax * float(stages.below[row, key])
    return error + precision.exp_units * softmax + precision.weights.unit_roundoff


def written_out(stages: Stages, precision: Precision, row: int, column: int) -> tuple[float, float]:
    """Bound and underflow of one output, by METHOD A.3."""
    value, output = stages.block.value[:, column], float(stages.output[row, column])
    weights, keys = stages.weights[row], range(stages.weights.shape[1])
    errors = [error_of_logit(stages, precision, row, key) for key in keys]
    raised = np.array([weights[key] * math.expm1(errors[key]) for key in keys])
    kept = sum(weights[key] * math.exp(-errors[key]) for key in keys)
    # Triangle inequality or Cauchy-Schwarz; a share of 1e-13 covers the rounding of the difference of squares.
    squares = float(raised @ (value - output) ** 2) + 1e-13 * float(raised @ (value**2 + output**2))
    distance = min(float(raised @ (np.abs(value) + abs(output))), math.sqrt(raised.sum() * squares))
    seen = value[stages.visible.any(0)]
    bound = min(distance / kept, max(float(seen.max()) - output, output - float(seen.min())))
    computed = (weights + raised) / kept
    operand = precision.operand.unit_roundoff if precision.operand else 0.0
    summed = of_a_sum(np.count_nonzero(computed), precision.output_sum.unit_roundoff)
    size = min(float(computed @ np.abs(value)), float(np.abs(seen).max()))
    later = (summed + (1.0 + summed) * ((1.0 + operand) ** 2 - 1.0)) * size
    later += (summed + 4.0 * precision.softmax.unit_roundoff + 4.0 * precision.output.unit_roundoff) * (
        abs(output) + bound
    )
    underflow = float(np.minimum(computed, 4.0 * precision.weights.tiny) @ np.abs(value)) + 2.0 * precision.output.tiny
    if precision.softmax is not FloatFormat.FLOAT64:
        underflow += value.size * 2.0**-126 * float(np.abs(value).max())
    return bound + later + underflow, underflow


SPECS = {
    "plain": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, v_head_dim=3),
    "scale": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=3, scale=-1.5),
    "causal": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4, is_causal=True, left_window=5),
    "softcap": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, softcap=1.5),
    "mask": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, mask=MaskKind.FLOAT),
    "softcap, mask": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4, softcap=2.0, mask=MaskKind.FLOAT),
    # Sums so long for bfloat16 and float16 that n u is above a half in one of them.
    "wide": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=130, v_head_dim=2),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("spread", [0.5, 6.0])
@pytest.mark.parametrize("name", SPECS)
def test_the_bound_is_its_formula(name: str, spread: float, precision: str) -> None:
    """Element by element, for each stage that rounds, with small errors of the logits and with errors above one."""
    spec, declared = SPECS[name], PRECISIONS[precision]
    case = AttentionCase(spec=spec, q_seq_len=4, kv_seq_len=140 if name == "wide" else 9, dtype=Dtype.FLOAT64)
    (block,) = head_blocks(spec, draw_inputs(case, spread=spread, seed=3))
    # An offset, so that the output is not near zero and the rows of value have one sign.
    stages = stages_of(replace(block, value=10.0 * block.value + np.linspace(0.0, 40.0, block.value.shape[1])))
    check(stages, declared)


@pytest.mark.parametrize("name", ["plain", "scale", "softcap", "mask"])
def test_the_bound_of_scaled_operands_that_underflow(name: str) -> None:
    """Queries of a few subnormal steps of float16 lose a share of themselves when the scale is applied to them."""
    spec, precision = SPECS[name], replace(_EXACT, prescaled=FloatFormat.FLOAT16)
    case = AttentionCase(spec=spec, q_seq_len=3, kv_seq_len=7, dtype=Dtype.FLOAT64)
    (block,) = head_blocks(spec, draw_inputs(case, seed=3))
    check(stages_of(replace(block, query=1e-6 * block.query, key=1e3 * block.key)), precision)


def check(stages: Stages, precision: Precision) -> None:
    found = bound_stages(stages, precision)
    rows, columns = stages.output.shape
    expected = np.array(
        [[written_out(stages, precision, row, column) for column in range(columns)] for row in range(rows)]
    )
    np.testing.assert_allclose(found.bound, expected[..., 0], rtol=1e-7)
    np.testing.assert_allclose(found.underflow, expected[..., 1], rtol=1e-12)


# --- Errors of logits from next to nothing to far above one, in one row ---


def test_weights_that_the_errors_of_their_logits_raise() -> None:
    """w (e^E - 1) of small and large errors in one row, also of weights that are nearly 0; 50 digits agree."""
    errors = np.array([[1e-9, 0.5, 0.999, 1.001, 5.0, 60.0, 290.0]])
    logits = np.array([[0.0, -0.3, 0.2, -1.0, -4.0, -59.0, -280.0]])
    block = HeadBlock(
        batch=0, head=0, rows=np.arange(1), query=np.ones((1, 1)), key=logits.T, value=np.ones((7, 1)),
        bias=np.zeros((1, 7)), scale=1.0, softcap=0.0,
    )  # fmt: skip
    with mpmath.workdps(50):
        weights = [mpmath.exp(float(logit)) for logit in logits[0]]
        expected = [float(w / sum(weights) * mpmath.expm1(float(e))) for w, e in zip(weights, errors[0], strict=True)]
    np.testing.assert_allclose(lifted(stages_of(block), errors)[0], expected, rtol=1e-12)
    small = np.minimum(errors, 0.9)
    np.testing.assert_allclose(
        lifted(stages_of(block), small)[0, :2], stages_of(block).weights[0, :2] * np.expm1(small[0, :2]), rtol=1e-12
    )


# --- Overflow ---


@pytest.mark.parametrize(
    ("precision", "limit"),
    [
        ("float16", 65504.0 * (1.0 + 2.0**-13)),
        ("float16-accumulation", 65504.0 * (1.0 - 2.0**-9)),
        ("float32", 3.4028234663852886e38 * (1.0 - 2.0**-22)),
    ],
)
def test_the_largest_score_that_cannot_overflow(precision: str, limit: float) -> None:
    """Half a step above the largest number if it is only stored; below it by the error of a sum in that format."""
    assert overflow_limit(find_precision(precision)) == pytest.approx(limit, rel=1e-12)


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0])
def test_scores_overflow_before_or_after_the_scale(scale: float) -> None:
    """Row by row: the larger of the product and the scaled product decides, even if the scale is 0."""
    limit = overflow_limit(find_precision("float16")) / max(1.0, scale)
    query = np.array([[0.999], [1.001], [-1.001], [0.5]]) * limit
    block = HeadBlock(
        batch=0, head=0, rows=np.arange(4), query=query, key=np.array([[1.0], [0.3]]), value=np.ones((2, 1)),
        bias=np.zeros((4, 2)), scale=scale, softcap=0.0,
    )  # fmt: skip
    found = bound_stages(stages_of(block), find_precision("float16"))
    assert found.overflows.tolist() == [False, True, True, False]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.0])
def test_without_keys_only_zero_is_right(bad: float) -> None:
    """Nothing overflows where there is nothing to add up."""
    problem = BY_NAME["no-keys"]
    expectation = expect(problem.case().spec, problem.inputs(), precision=find_precision("float16"))
    right = np.zeros(expectation.shape)
    assert judge(expectation, right).verdict is Verdict.OK
    right[0, 0, 0, 0] = bad
    assert judge(expectation, right).verdict is Verdict.WRONG
