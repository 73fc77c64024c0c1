"""The evidence of many parts equals figures computed over all elements at once."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention import stages
from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.judge.directions import rounded_scale
from sdpa_onnx.core.judge.evidence import LARGEST_RATIO, Evidence, gather
from sdpa_onnx.core.judge.expectation import Expectation, expect

Array = NDArray[Any]
Float64 = NDArray[np.float64]

SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, v_head_dim=5, mask=MaskKind.BOOL)
SHAPE = (2, 4, 7, 5)
# Of 7 queries the second sees no key; the others see all but a few.
HIDDEN_QUERY = 1


@pytest.fixture
def inputs() -> AttentionInputs:
    case = AttentionCase(spec=SPEC, batch_size=2, q_seq_len=7, kv_seq_len=12)
    drawn = draw_inputs(case, seed=3)
    mask = np.random.default_rng(3).random((1, 1, 7, 12)) < 0.9
    mask[:, :, HIDDEN_QUERY] = False
    return replace(drawn, attn_mask=mask)


@pytest.fixture(params=[24, 10_000], ids=["two rows a part", "one part a head"])
def expectation(
    inputs: AttentionInputs, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Expectation:
    monkeypatch.setattr(stages, "_PART_ELEMENTS", request.param)
    return expect(SPEC, inputs, precision=find_precision("float32"))


def joined(expectation: Expectation, pick: Callable[[int], Float64]) -> Float64:
    """An array of all parts, (batch, heads, queries, columns)."""
    array = np.zeros(SHAPE)
    for index, place in enumerate(expectation.blocks):
        array[place] = pick(index)
    return array


def of(expectation: Expectation) -> tuple[Float64, Float64, Float64, Float64]:
    """Oracle, bound, sigma and d output / d ln(scale) of all elements."""
    return (
        joined(expectation, lambda index: expectation.bounds[index].output),
        joined(expectation, lambda index: expectation.bounds[index].bound),
        joined(expectation, lambda index: expectation.sigmas[index].sigma),
        joined(expectation, lambda index: expectation.bounds[index].per_scale),
    )


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_figures_of_rounding_errors(expectation: Expectation, size: float) -> None:
    """Kappa over all elements and of the worst head, the largest deviation, and the smallest scale error proved."""
    oracle, bound, sigma, per_scale = of(expectation)
    rng = np.random.default_rng(1)
    heads = np.array([1.0, 2.0, 0.5, 1.0]).reshape(1, 4, 1, 1) * np.array([1.0, 0.7]).reshape(2, 1, 1, 1)
    actual = oracle + size * heads * sigma * rng.standard_normal(SHAPE)
    evidence = gather(expectation, actual)
    error = np.abs(actual - oracle)
    known = sigma > 0.0
    squares = np.where(known, error / np.where(known, sigma, 1.0), 0.0) ** 2
    assert evidence.deviations == np.count_nonzero(known) == 2 * 4 * 6 * 5
    assert evidence.kappa == pytest.approx(math.sqrt(squares.sum() / known.sum()), rel=1e-9)
    assert evidence.head_kappa == pytest.approx(math.sqrt(squares.mean((2, 3)).max() * 7 / 6), rel=1e-9)
    assert evidence.max_z == pytest.approx(math.sqrt(squares.max()), rel=1e-9)
    assert evidence.square_sum == pytest.approx(squares.sum(), rel=1e-9)
    assert (evidence.statistical_rows, evidence.doubtful_rows, evidence.regular_rows) == (2 * 4 * 6, 0, 0)
    assert (evidence.total, evidence.judged, evidence.judged_rows) == (actual.size, actual.size, 2 * 4 * 7)
    slope = np.abs(per_scale)
    provable = (bound + error)[slope > 0.0] / slope[slope > 0.0]
    assert evidence.scale_error_proven == pytest.approx(provable.min(), rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_figures_of_a_wrong_output(expectation: Expectation, dtype: type) -> None:
    """Elements outside, the worst of them with its text, and what other tools compare."""
    oracle, bound, _, _ = of(expectation)
    rng = np.random.default_rng(2)
    wide = oracle + bound * rng.choice([0.5, -0.5, 3e4, -7e4], SHAPE)
    wide[:, :, HIDDEN_QUERY] = 0.0
    wide[1, 2, 4, 3] = oracle[1, 2, 4, 3] + 0.3
    output = wide.astype(dtype)
    actual = output.astype(np.float64)
    evidence = gather(expectation, output)
    error, ratio = np.abs(actual - oracle), np.abs(actual - oracle) / bound
    assert evidence.mismatched == np.count_nonzero(ratio > 1.0)
    assert evidence.max_bound_ratio == pytest.approx(ratio.max(), rel=1e-12)
    worst = tuple(int(index) for index in np.unravel_index(int(ratio.argmax()), SHAPE))
    assert evidence.worst == worst
    assert evidence.worst_text == f"got {actual[worst]:.6g}, expected {oracle[worst]:.6g} +- {bound[worst]:.2g}"
    assert evidence.max_abs_error == pytest.approx(error.max(), rel=1e-12)
    nonzero = oracle != 0.0
    assert evidence.max_relative_error == pytest.approx((error[nonzero] / np.abs(oracle[nonzero])).max(), rel=1e-12)
    smallest = np.finfo(dtype).smallest_normal
    steps = np.spacing(
        np.maximum(2.0 ** np.floor(np.log2(np.maximum(np.abs(oracle), smallest))), smallest).astype(dtype)
    )
    assert evidence.max_ulp_error == pytest.approx((error / steps.astype(np.float64)).max(), rel=1e-12)
    assert evidence.dot == pytest.approx((actual * oracle).sum(), rel=1e-12)
    assert evidence.actual_square == pytest.approx((actual**2).sum(), rel=1e-12)
    assert evidence.oracle_square == pytest.approx((oracle**2).sum(), rel=1e-12)
    assert (evidence.not_finite, evidence.first_not_finite, evidence.excused_rows) == (0, None, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_elements_that_are_not_finite_are_counted_and_the_rest_is_judged(expectation: Expectation, bad: float) -> None:
    """Their first place is named; they add nothing to errors, sums and deviations."""
    oracle, bound, sigma, _ = of(expectation)
    places = [(0, 2, 3, 4), (0, 3, 0, 0), (1, 0, 6, 2)]
    clean = gather(expectation, oracle + 0.5 * sigma)
    actual = oracle + 0.5 * sigma
    actual[0, 1, 2, 3] += 1.5 * bound[0, 1, 2, 3]
    for place in places:
        actual[place] = bad
    evidence = gather(expectation, actual)
    assert (evidence.not_finite, evidence.first_not_finite, evidence.mismatched) == (3, places[0], 1)
    assert evidence.worst == (0, 1, 2, 3)
    assert evidence.total == clean.total
    assert evidence.judged == clean.judged
    # They still count as elements of their head, with a deviation of 0.
    assert evidence.deviations == clean.deviations
    known = np.where(np.isfinite(actual), actual, 0.0)
    assert evidence.dot == pytest.approx((known * oracle).sum(), rel=1e-12)
    assert evidence.max_abs_error == pytest.approx(np.abs(actual - oracle)[0, 1, 2, 3], rel=1e-12)


def test_an_error_where_none_is_possible_has_the_largest_ratio(expectation: Expectation) -> None:
    """A bound of 0 would divide by 0; JSON has no infinity."""
    exact = replace(
        expectation, bounds=tuple(replace(bound, bound=np.zeros_like(bound.bound)) for bound in expectation.bounds)
    )
    oracle, *_ = of(expectation)
    assert gather(exact, oracle).max_bound_ratio == 0.0
    actual = oracle.copy()
    actual[1, 3, 6, 4] += 1e-6
    evidence = gather(exact, actual)
    assert (evidence.max_bound_ratio, evidence.mismatched, evidence.worst) == (LARGEST_RATIO, 1, (1, 3, 6, 4))


def test_an_error_that_exceeds_all_sums_stays_a_number(expectation: Expectation) -> None:
    """1e300 where the oracle is 1: no infinity in kappa, largest deviation or similarity."""
    oracle, *_ = of(expectation)
    actual = oracle.copy()
    actual[0, 0, 0, 0] = 1e300
    evidence = gather(expectation, actual)
    assert evidence.mismatched == 1
    assert math.isfinite(evidence.kappa)
    assert evidence.max_z == 1e100


@pytest.mark.parametrize(
    ("size", "is_excused"), [(65504 * (1 - 2.0**-11) * 1.0001, True), (65504 * (1 - 2.0**-10), False)]
)
def test_an_output_near_the_largest_number_may_be_infinite(size: float, is_excused: bool) -> None:
    """Half a step below the largest float16 a right sum may round beyond it; a step below it may not."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=2, v_head_dim=2)
    case = AttentionCase(spec=spec, q_seq_len=3, kv_seq_len=1, dtype=Dtype.FLOAT64)
    drawn = draw_inputs(case, seed=3)
    value = np.array([size, 1.0]).reshape(1, 1, 1, 2)
    expectation = expect(spec, replace(drawn, value=value), precision=find_precision("float16"))
    actual = np.broadcast_to(value, (1, 1, 3, 2)).copy()
    actual[0, 0, 1, 0] = np.inf
    found = gather(expectation, actual)
    assert (found.excused_rows, found.not_finite) == ((1, 0) if is_excused else (0, 1))
    assert found.judged == (5 if is_excused else 6)


def test_nothing_is_known_without_parts() -> None:
    """No element: kappa has no value, and no head is the worst."""
    empty = Evidence()
    assert (empty.kappa, empty.head_kappa, empty.deviations) == (-1.0, -1.0, 0)


def test_a_legitimately_rounded_scale_is_subtracted_from_every_deviation(inputs: AttentionInputs) -> None:
    """All but those of elements without a deviation: exact, or not finite."""
    half = find_precision("float16")
    scale = SPEC.scale_value * (1.0 + 0.9 * 2.0**-11)
    # Values that go with the keys: the scale moves every element alike.
    spec = replace(SPEC, v_head_dim=8)
    given = replace(inputs, value=inputs.key)
    expectation = expect(spec, given, precision=half)
    moved = attend(replace(spec, scale=scale), given).output
    moved[1, 2, 3, 4] = np.nan
    evidence = gather(expectation, moved)
    error = rounded_scale(evidence.rows, evidence.square_sum, half)
    assert error == pytest.approx(0.9 * 2.0**-11, rel=0.05)
    total, largest = 0.0, 0.0
    for place, bound, sigma in zip(expectation.blocks, expectation.bounds, expectation.sigmas, strict=True):
        known = (sigma.sigma > 0.0) & np.isfinite(moved[place]) & (moved[place] != bound.output)
        rest = ((moved[place] - bound.output) - error * bound.per_scale)[known] / sigma.sigma[known]
        total, largest = total + float(rest @ rest), max(largest, float(np.abs(rest).max(initial=0.0)))
    assert evidence.kappa == pytest.approx(math.sqrt(total / evidence.deviations), rel=1e-9)
    assert evidence.max_z == pytest.approx(largest, rel=1e-9)
    assert total < 0.01 * evidence.square_sum


def test_the_first_lost_nan_is_named(inputs: AttentionInputs) -> None:
    """NaN in one value reaches every query of two heads that sees its key; all of them are counted, the first named."""
    value = inputs.value.copy()
    value[1, 1, 5, 2] = np.nan
    given = replace(inputs, value=value, attn_mask=None)
    spec = replace(SPEC, mask=MaskKind.NONE)
    right = attend(spec, given).output
    lost = np.argwhere(np.isnan(right))
    assert len(lost) == 2 * 7
    evidence = gather(expect(spec, given, precision=find_precision("float32")), np.nan_to_num(right))
    assert (evidence.swallowed, evidence.first_swallowed) == (14, tuple(int(index) for index in lost[0]))
