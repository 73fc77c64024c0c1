"""Measures of rows and draws: the identities of the softmax Jacobian, standard errors, flags."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.oracle import softmax
from sdpa_onnx.core.records.records import MeasuredValue
from sdpa_onnx.core.saturation.measures import (
    MEANINGS,
    GradientMedians,
    MeasureName,
    RowStatistics,
    concatenate_rows,
    critical_spread,
    deviations,
    gradient_medians,
    jacobian_square,
    measure_rows,
    summarise,
)
from sdpa_onnx.errors import PlanError

Float64 = NDArray[np.float64]

ALIVE = GradientMedians(logit=1.0, query=1.0)


def rows_of(logits: Float64, *, scale: float = 1.0, gradient: float = 1.0) -> RowStatistics:
    """Statistics of rows whose weights are the softmax of these logits."""
    norms = np.full(logits.shape[0], gradient)
    return measure_rows(logits, softmax(logits), scale=scale, logit_gradient=norms, query_gradient=norms)


def gaussian_draws(count: int, *, beta: float, rows: int = 64, keys: int = 32, seed: int = 0) -> list[RowStatistics]:
    rng = np.random.default_rng(seed)
    return [rows_of(beta * rng.standard_normal((rows, keys))) for _ in range(count)]


def jacobian(weights: Float64) -> Float64:
    return np.diag(weights) - np.outer(weights, weights)


@pytest.mark.parametrize("beta", [0.1, 1.0, 8.0])
def test_jacobian_norm_is_that_of_the_matrix(beta: float) -> None:
    """The three power sums yield |diag w - w w^T|_F; its rows sum to 0 and its trace is 1 - p2."""
    weights = softmax(beta * np.random.default_rng(1).standard_normal((20, 17)))
    for row, square in zip(weights, jacobian_square(weights), strict=True):
        matrix = jacobian(row)
        assert square == pytest.approx((matrix**2).sum(), rel=1e-12)
        assert matrix.sum(1) == pytest.approx(np.zeros(17), abs=1e-15)
        assert np.trace(matrix) == pytest.approx(1.0 - (row**2).sum(), abs=1e-14)
        assert np.linalg.eigvalsh(matrix)[-1] <= 0.5 + 1e-12


def test_jacobian_norm_of_known_rows() -> None:
    """Two equal weights yield 1/4, one-hot 0, uniform (S - 1) / S^2."""
    rows = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.25] * 4])
    assert jacobian_square(rows) == pytest.approx([0.25, 0.0, 3 / 16], abs=1e-16)


def test_jacobian_norm_of_a_nearly_one_hot_row() -> None:
    """At a rest of 1e-12 the power sums lose every digit; w (1 - w) sqrt(2) remains."""
    rest = 1e-12
    square = jacobian_square(np.array([[1.0 - rest, rest]]))
    assert math.sqrt(square[0]) == pytest.approx(2.0 * rest, rel=1e-3)


def test_statistics_of_known_rows() -> None:
    """A uniform row and a one-hot row, worked out by hand."""
    statistics = rows_of(np.array([[2.0] * 4, [100.0, 0.0, 0.0, 0.0]]), scale=0.5)
    assert statistics.entropy == pytest.approx([math.log(4), 0.0], abs=1e-12)
    assert statistics.square_sum == pytest.approx([0.25, 1.0])
    assert statistics.largest_weight == pytest.approx([0.25, 1.0])
    assert statistics.log_partition == pytest.approx([2.0 + math.log(4), 100.0])
    assert statistics.product_mean == pytest.approx([4.0, 50.0])
    assert statistics.product_square == pytest.approx([16.0, 10000.0])
    assert statistics.logit_variance == pytest.approx([0.0, 2500.0])
    assert statistics.float16_zeros == pytest.approx([0.0, 0.75])


@pytest.mark.parametrize(("product", "share"), [(65504.0, 0.0), (65505.0, 0.5)])
def test_overflow_is_counted_before_the_scale(product: float, share: float) -> None:
    """65504 still fits float16; the scale does not help a product that overflowed."""
    statistics = rows_of(np.array([[product / 1000, 0.0]]), scale=1e-3)
    assert statistics.float16_overflow == pytest.approx([share])


def test_a_row_that_is_not_finite_is_left_out() -> None:
    """It counts as overflow, everything else is NaN, and nothing is compared with a prediction."""
    logits = np.array([[np.inf, 0.0], [0.0, 0.0]])
    weights = np.array([[np.nan, np.nan], [0.5, 0.5]])
    ones = np.ones(2)
    draw = measure_rows(logits, weights, scale=1.0, logit_gradient=ones, query_gradient=ones)
    assert np.isnan(draw.entropy).tolist() == [True, False]
    measures = summarise(
        [draw] * 4, kv_seq_len=2, predicted={MeasureName.ENTROPY: 5.0, MeasureName.FLOAT16_OVERFLOW: 0.25}, alive=ALIVE
    )
    assert measures["entropy"] == MeasuredValue(value=math.log(2), standard_error=0.0)
    assert measures["float16_overflow"].value == 0.25
    assert measures["float16_overflow"].z is not None


def test_rows_that_are_all_not_finite_give_no_measure() -> None:
    """There is no entropy to state; the overflow is."""
    broken = np.full((2, 2), np.nan)
    draw = measure_rows(broken, broken, scale=1.0, logit_gradient=np.ones(2), query_gradient=np.ones(2))
    assert list(summarise([draw] * 4, kv_seq_len=2, predicted={}, alive=ALIVE)) == ["float16_overflow"]


def test_too_few_draws_are_refused() -> None:
    """Three draws are too few for a standard error; four are enough."""
    draws = gaussian_draws(4, beta=1.0)
    assert summarise(draws, kv_seq_len=32, predicted={}, alive=ALIVE)
    with pytest.raises(PlanError, match=r"^draws is 3; it must be at least 4\. Standard errors need them\.$"):
        summarise(draws[:3], kv_seq_len=32, predicted={}, alive=ALIVE)


def test_every_measure_has_a_meaning_and_a_value() -> None:
    """The report shows a line for each, in the order of the names."""
    assert set(MEANINGS) == set(MeasureName)
    measures = summarise(gaussian_draws(4, beta=1.0), kv_seq_len=32, predicted={}, alive=ALIVE)
    assert list(measures) == [name.value for name in MeasureName]
    assert measures["beta_over_critical"].value == pytest.approx(measures["beta"].value / critical_spread(32))
    assert measures["participation"].value == pytest.approx(1.0 / measures["square_sum"].value)
    assert measures["effective_keys"].value == pytest.approx(math.exp(measures["entropy"].value))


def test_standard_error_comes_from_the_draws() -> None:
    """Rows of one draw are copies of each other here: only four numbers are independent."""
    draws = [rows_of(np.tile(value * np.array([[1.0, 0.0]]), (500, 1))) for value in (0.0, 1.0, 2.0, 3.0)]
    measure = summarise(draws, kv_seq_len=2, predicted={}, alive=ALIVE)["log_partition"]
    each = [math.log(1 + math.exp(value)) for value in (0.0, 1.0, 2.0, 3.0)]
    assert measure.value == pytest.approx(np.mean(each))
    assert measure.standard_error == pytest.approx(np.std(each, ddof=1) / 2)


def test_standard_error_covers_the_truth() -> None:
    """Over 200 repetitions, z of a right prediction has about the spread of a normal deviate."""
    beta = 0.5
    deviates = []
    for seed in range(200):
        draws = gaussian_draws(8, beta=beta, rows=8, keys=16, seed=seed)
        z = summarise(draws, kv_seq_len=16, predicted={MeasureName.BETA: beta}, alive=ALIVE)["beta"].z
        assert z is not None
        deviates.append(z)
    assert np.std(deviates) == pytest.approx(1.0, abs=0.15)


# Student's t at the probability of a normal deviate of 3.85 and 4.15, by draws (scipy 1.17).
STUDENT = {4: (26.484, 40.45), 5: (14.901, 20.53), 16: (5.152, 5.828), 1000: (3.865, 4.169)}


@pytest.mark.parametrize("draws", STUDENT)
def test_few_draws_need_more_to_be_flagged(draws: int) -> None:
    """z = 4 is once in 16 000 whatever the number of draws: 33 standard errors of 4 draws, 5.5 of 16."""
    values = np.random.default_rng(0).standard_normal(draws)
    values = (values - values.mean()) / values.std(ddof=1) * math.sqrt(draws)
    parts = [replace(rows_of(np.zeros((1, 2))), log_partition=np.array([value])) for value in values]
    for t, flagged in zip(STUDENT[draws], (False, True), strict=True):
        measures = summarise(parts, kv_seq_len=2, predicted={MeasureName.LOG_PARTITION: -t}, alive=ALIVE)
        assert ("log_partition" in deviations(measures)) is flagged


def test_a_share_that_was_never_seen_still_has_an_error() -> None:
    """None in 256 rows is no contradiction to one in a thousand, but one to a tenth."""
    draws = gaussian_draws(4, beta=0.1)
    for predicted, flagged in ((1e-3, False), (0.1, False), (0.9, True)):
        measures = summarise(draws, kv_seq_len=32, predicted={MeasureName.SATURATED_ROWS: predicted}, alive=ALIVE)
        assert measures["saturated_rows"].value == 0.0
        assert ("saturated_rows" in deviations(measures)) is flagged


def test_dead_rows_are_told_by_the_scaled_median() -> None:
    """Just above and just below a tenth of it."""
    draws = [rows_of(np.zeros((4, 2)), gradient=gradient) for gradient in (0.099, 0.099, 0.101, 0.101)]
    measures = summarise(draws, kv_seq_len=2, predicted={}, alive=ALIVE)
    assert measures["query_gradient_dead"].value == measures["logit_gradient_dead"].value == 0.5


def test_medians_and_joining() -> None:
    """Blocks of a draw are put end to end; medians go over all rows of all draws."""
    both = concatenate_rows([rows_of(np.zeros((2, 3))), rows_of(np.ones((1, 3)), gradient=5.0)])
    assert both.logit_gradient.tolist() == [1.0, 1.0, 5.0]
    norms = [(np.array([1.0, 2.0]), np.array([3.0, 4.0])), (np.array([9.0]), np.array([9.0]))]
    assert gradient_medians(norms) == GradientMedians(logit=2.0, query=4.0)


def test_deviations_name_the_furthest_first() -> None:
    """Measures without a prediction are never flagged; a z of exactly 4 is not."""
    measures = {
        "a": MeasuredValue(value=1.0, z=-4.5),
        "b": MeasuredValue(value=1.0),
        "c": MeasuredValue(value=1.0, z=9.0),
    }
    assert list(deviations(measures | {"d": MeasuredValue(value=1.0, z=4.0)})) == ["c", "a"]
