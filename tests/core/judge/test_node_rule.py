"""The rule for one node: limits in pairs, just inside and just outside, for every kind of operator."""

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import PRECISIONS
from sdpa_onnx.core.judge.node_rule import (
    NodeExpectation,
    NodeRule,
    judge_node_output,
    product_bound,
    rule_of,
    working_unit,
)
from sdpa_onnx.core.records.verdicts import Verdict

U32 = 2.0**-24
Float64 = NDArray[np.float64]


def _truth(exact: object, **changes: object) -> NodeExpectation:
    arguments: dict[str, object] = {
        "rule": NodeRule.OTHER,
        "exact": np.asarray(exact),
        "own": None,
        "moved": None,
        "bound": None,
        "dtype": np.dtype("float32"),
    }
    return NodeExpectation(**(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("domain", "operator", "rule"),
    [
        ("", "Add", NodeRule.ROUNDED),
        ("ai.onnx", "Transpose", NodeRule.ROUNDED),
        ("", "MatMul", NodeRule.PRODUCT),
        ("", "QuantizeLinear", NodeRule.QUANTISING),
        ("", "LayerNormalization", NodeRule.OTHER),
        ("com.microsoft", "Add", NodeRule.OTHER),
    ],
)
def test_rule_of_an_operator(domain: str, operator: str, rule: NodeRule) -> None:
    """Standard operators have the rule of their kind, those of other domains none."""
    assert rule_of(domain, operator) is rule


@pytest.mark.parametrize(("roundings", "verdict"), [(8.5, Verdict.OK), (9.5, Verdict.WRONG)])
def test_rounded_operator(roundings: float, verdict: Verdict) -> None:
    """Nine roundings of the element itself; a larger error is proven wrong, even next to larger elements."""
    exact = np.array([1.0, 1e30])
    actual = np.array([1.0, 1e30], np.float32)
    truth = _truth(np.array([1.0 - roundings * U32, exact[1]]), rule=NodeRule.ROUNDED)
    assert judge_node_output(truth, actual).verdict is verdict


@pytest.mark.parametrize(("times", "verdict"), [(7.5, Verdict.OK), (8.5, Verdict.SUSPICIOUS)])
@pytest.mark.parametrize("source", ["own", "moved"])
def test_eight_times_the_yardstick(source: str, times: float, verdict: Verdict) -> None:
    """Eight times the reference's error, or the change by one rounding of the inputs; beyond is no proof."""
    step = 2.0**-10
    exact = np.zeros((1, 4))
    seen = np.array([[0.0, step, 0.0, 0.0]])
    change = {source: seen.astype(np.float32) if source == "own" else seen}
    actual = np.array([[times * step, 0.0, 0.0, 0.0]], np.float32)
    agreement = judge_node_output(_truth(exact, **change), actual)
    assert agreement.verdict is verdict
    assert agreement.error == times * step


def test_output_rounding_is_taken_off_the_yardstick() -> None:
    """What the reference loses by rounding its output is allowed once, not eight times."""
    exact = np.full((1, 8), 1.0 + 2.0**-12)  # half a spacing of float16 above 1
    own = np.ones((1, 8), np.float16)
    truth = _truth(exact, own=own, dtype=np.dtype("float16"))
    assert judge_node_output(truth, own).verdict is Verdict.OK
    off = np.full((1, 8), 1.0 + 2.0**-9, np.float16)
    assert judge_node_output(truth, off).verdict is Verdict.SUSPICIOUS


def test_one_ill_conditioned_row_excuses_no_other() -> None:
    """The yardstick is a row's own, and the middle one's at least."""
    exact, moved = np.ones((5, 3)), np.ones((5, 3))
    moved[0] = 2.0
    moved[1:] += 1e-7
    actual = np.ones((5, 3), np.float32)
    actual[0, 0] = 5.0
    assert judge_node_output(_truth(exact, moved=moved), actual).verdict is Verdict.OK
    actual[0, 0], actual[3, 1] = 1.0, 1.001
    assert judge_node_output(_truth(exact, moved=moved), actual).verdict is Verdict.SUSPICIOUS


def test_row_that_the_reference_has_right_by_luck() -> None:
    """A row without any error of the reference is judged by the middle row."""
    exact, moved = np.ones((5, 3)), np.ones((5, 3)) + 1e-5
    moved[2] = 1.0
    actual = np.ones((5, 3), np.float32)
    actual[2, 0] += 5e-5
    assert judge_node_output(_truth(exact, moved=moved), actual).verdict is Verdict.OK


@pytest.mark.parametrize(("share", "verdict"), [(0.99, Verdict.OK), (1.01, Verdict.WRONG)])
def test_proven_bound_of_a_product(share: float, verdict: Verdict) -> None:
    """A product beyond its bound is proven wrong, though the yardstick would let it pass."""
    exact, bound = np.zeros((1, 4)), np.full((1, 4), 2.0**-10)
    moved = np.full((1, 4), 1.0)
    actual = np.zeros((1, 4), np.float32)
    actual[0, 2] = share * (bound[0, 2] * (1 + U32))
    assert judge_node_output(_truth(exact, rule=NodeRule.PRODUCT, bound=bound, moved=moved), actual).verdict is verdict


def test_product_inside_its_bound_is_right() -> None:
    """The error of the reference is no limit where a bound is proven: another order of summation is as right."""
    truth = _truth(np.zeros((1, 4)), rule=NodeRule.PRODUCT, bound=np.ones((1, 4)), moved=np.full((1, 4), 1e-6))
    assert judge_node_output(truth, np.full((1, 4), 1e-3, np.float32)).verdict is Verdict.OK


@pytest.mark.parametrize(("error", "is_finding"), [(1e-5, False), (1e-3, True)])
def test_limit_without_a_proof_is_named_and_makes_no_finding(error: float, *, is_finding: bool) -> None:
    """Beyond eight times the reference's error a node is suspicious; a finding only if half of the digits are lost."""
    truth = _truth(np.ones((1, 4)), own=np.full((1, 4), 1.0 + U32, np.float32))
    found = judge_node_output(truth, np.full((1, 4), 1.0 + error, np.float32))
    assert (found.verdict, found.is_finding) == (Verdict.SUSPICIOUS, is_finding)
    assert " exceed the limit (eight times the error of the reference, which is no proof), " in found.evidence


def test_integer_that_one_rounding_changes_is_no_proof() -> None:
    """A position that a rounding before it moves is suspicious, another one that differs is wrong."""
    truth = _truth(np.array([3, 4]), moved=np.array([3, 5]), dtype=np.dtype(np.int64))
    found = judge_node_output(truth, np.array([3, 5]))
    assert (found.verdict, found.is_finding) == (Verdict.SUSPICIOUS, False)
    assert found.evidence.endswith(" One rounding of the inputs changes them too, so this is no proof.")
    assert judge_node_output(truth, np.array([2, 5])).verdict is Verdict.WRONG


@pytest.mark.parametrize("name", ["float32", "tf32", "float16-accumulation"])
def test_bound_covers_the_worst_order(name: str) -> None:
    """The bound holds for a plain sequential sum in the declared format, and is not ten thousand times too wide."""
    rng = np.random.default_rng(0)
    narrow = np.float16 if name == "float16-accumulation" else np.float32
    left, right = (rng.standard_normal(shape).astype(narrow) for shape in ((6, 200), (200, 5)))
    total = np.zeros((6, 5), narrow)
    for k in range(200):
        total = (total + (left[:, k, None] * right[None, k]).astype(narrow)).astype(narrow)
    error = np.abs(total.astype(np.float64) - left.astype(np.float64) @ right.astype(np.float64))
    bound = product_bound(left, right, None, PRECISIONS[name])
    assert (error <= bound).all()
    assert error.max() > bound.min() / 1e4


def test_bound_of_a_product_with_bias() -> None:
    """A bias counts among the terms."""
    left, right = np.ones((1, 2)), np.ones((2, 1))
    without = product_bound(left, right, None, PRECISIONS["float32"])
    with_bias = product_bound(left, right, np.full((1, 1), -1000.0), PRECISIONS["float32"])
    assert with_bias > 500 * without


@pytest.mark.parametrize(
    ("name", "unit"), [("float32", 2.0**-24), ("float16", 2.0**-24), ("tf32", 2.0**-11), ("float64", 2.0**-53)]
)
def test_working_unit(name: str, unit: float) -> None:
    """The coarsest format that sums and functions are computed in."""
    assert working_unit(PRECISIONS[name]) == unit


def test_whole_numbers_are_equal() -> None:
    """One integer or boolean that differs is proven wrong and reported."""
    truth = _truth([[1, 2], [3, 4]], dtype=np.dtype("int64"))
    assert judge_node_output(truth, np.array([[1, 2], [3, 4]])).verdict is Verdict.OK
    found = judge_node_output(truth, np.array([[1, 2], [3, 5]]))
    assert (found.verdict, found.evidence) == (
        Verdict.WRONG,
        "1 of 4 elements differ, first at (1, 1): got 5, expected 4.",
    )


@pytest.mark.parametrize(("step", "verdict"), [(1, Verdict.OK), (2, Verdict.WRONG)])
def test_quantised_numbers_may_fall_to_either_side(step: int, verdict: Verdict) -> None:
    """A quantised value may differ by one, not by two."""
    truth = _truth(np.array([7], np.uint8), rule=NodeRule.QUANTISING, dtype=np.dtype("uint8"))
    assert judge_node_output(truth, np.array([7 + step], np.uint8)).verdict is verdict


def test_shape_and_type() -> None:
    """Another shape or type is wrong, and the message names both."""
    found = judge_node_output(_truth(np.zeros((2, 3))), np.zeros((3, 2), np.float32))
    assert (found.verdict, found.evidence) == (Verdict.WRONG, "It has shape (3, 2), expected (2, 3).")
    found = judge_node_output(_truth(np.zeros(2)), np.zeros(2, np.float16))
    assert (found.verdict, found.evidence) == (Verdict.WRONG, "It is of type float16, expected float32.")


@pytest.mark.parametrize(
    ("exact", "own", "actual", "verdict"),
    [
        (1.0, 1.0, np.nan, Verdict.WRONG),
        (1.0, 1.0, np.inf, Verdict.WRONG),
        (1.0, np.inf, np.inf, Verdict.OK),  # a step overflows in the model's own type
        (1e39, np.inf, np.inf, Verdict.OK),  # the value itself does
        (np.inf, np.inf, np.inf, Verdict.OK),
        (np.inf, np.inf, -np.inf, Verdict.WRONG),
        (np.inf, np.inf, 1.0, Verdict.WRONG),
        (np.nan, np.nan, 0.0, Verdict.OK),  # the formula has no value there
    ],
)
def test_not_finite(exact: float, own: float, actual: float, verdict: Verdict) -> None:
    """NaN and infinity are wrong unless the value, or the model's own type, leads there."""
    truth = _truth([exact], own=np.array([own], np.float32))
    assert judge_node_output(truth, np.array([actual], np.float32)).verdict is verdict


def test_bfloat16_and_empty() -> None:
    """bfloat16 is judged as a float; an empty output is right."""
    dtype = np.dtype(ml_dtypes.bfloat16)
    truth = _truth([1.0, 2.0], rule=NodeRule.ROUNDED, dtype=dtype)
    assert judge_node_output(truth, np.array([1.0, 2.0], dtype)).verdict is Verdict.OK
    assert judge_node_output(truth, np.array([1.0, 2.25], dtype)).verdict is Verdict.WRONG
    assert judge_node_output(_truth(np.zeros((0, 3))), np.zeros((0, 3), np.float32)).verdict is Verdict.OK


def test_evidence() -> None:
    """The sentence holds count, worst error, limit, place and both values."""
    actual = np.array([0.0, 1.0, 0.0], np.float32)
    found = judge_node_output(_truth([0.0, 0.5, 0.0], rule=NodeRule.ROUNDED), actual)
    assert found.evidence == (
        "1 of 3 elements exceed the limit (nine roundings), the worst is off by 0.5, limit 2.68e-07, at (1,): got 1, "
        "expected 0.5."
    )
