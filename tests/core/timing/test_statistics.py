"""Intervals: coverage on correlated noise, corner cases, launches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sdpa_onnx.core.timing.statistics import Interval, bootstrap_median, median_over_launches

Float64 = NDArray[np.float64]

# Visits of a default plan.
VISITS = 40


def correlated(rng: np.random.Generator, count: int, *, phi: float = 0.4) -> Float64:
    """AR(1) noise of mean 0 and deviation 1: neighbours are correlated by phi."""
    noise = np.empty(count)
    noise[0] = rng.standard_normal()
    for index in range(1, count):
        noise[index] = phi * noise[index - 1] + np.sqrt(1 - phi**2) * rng.standard_normal()
    return noise


def coverage(*, phi: float, trials: int = 400) -> float:
    """Share of intervals that hold the true median, 10."""
    rng = np.random.default_rng(2024)
    held = 0
    for trial in range(trials):
        interval = bootstrap_median(10 + correlated(rng, VISITS, phi=phi), seed=trial)
        held += interval.low <= 10 <= interval.high
    return held / trials


@pytest.mark.parametrize(("phi", "least"), [(0.0, 0.90), (0.4, 0.85)])
def test_intervals_cover_the_true_median(phi: float, least: float) -> None:
    """About 95 % of them; resampling single visits would yield 83 % for correlated neighbours."""
    # 400 trials: the standard error of a coverage of 93 % is 1.3 %. A whole range would cover 100 %.
    assert least <= coverage(phi=phi) <= 0.99


def test_intervals_shrink_with_more_visits() -> None:
    """Four times the visits, about half the width."""
    rng = np.random.default_rng(1)
    widths = []
    for count in (40, 640):
        intervals = [bootstrap_median(correlated(rng, count), seed=trial) for trial in range(20)]
        widths.append(np.mean([interval.high - interval.low for interval in intervals]))
    assert 2.5 < widths[0] / widths[1] < 6.5


def test_the_estimate_is_the_median() -> None:
    """Outliers have no say, and the interval holds the estimate."""
    visits = np.array([3.0, 1.0, 2.0, 1e6, 2.5])
    interval = bootstrap_median(visits)
    assert interval.estimate == 2.5
    assert interval.low <= 2.5 <= interval.high


def test_the_same_seed_gives_the_same_interval() -> None:
    """A report is repeatable; another seed moves the ends only."""
    visits = 10 + correlated(np.random.default_rng(5), VISITS)
    first, again, other = (bootstrap_median(visits, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.estimate == other.estimate
    assert first != other


@pytest.mark.parametrize("count", [1, 2, 3, 8, 27])
def test_few_visits_still_give_an_interval(count: int) -> None:
    """Also one visit, whose interval is itself, and counts at the corners of the block length."""
    visits = np.arange(1.0, count + 1)
    interval = bootstrap_median(visits)
    assert 1 <= interval.low <= interval.estimate <= interval.high <= count


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60), st.floats(0.01, 100))
@settings(max_examples=40)
def test_units_do_not_matter(numbers: list[float], unit: float) -> None:
    """An interval in other units is the same interval; it lies within the data."""
    visits = np.array(numbers)
    interval, scaled = bootstrap_median(visits), bootstrap_median(visits * unit)
    assert visits.min() <= interval.low <= interval.estimate <= interval.high <= visits.max()
    assert scaled.estimate == pytest.approx(interval.estimate * unit)
    assert scaled.low == pytest.approx(interval.low * unit)
    assert scaled.high == pytest.approx(interval.high * unit)


def test_launches_are_the_sample() -> None:
    """Four launches that grow by a tenth each: t of 3 degrees times the error of their logarithms, by hand."""
    found = median_over_launches(1.1 ** np.arange(4.0))
    half = 3.182446 * np.log(1.1) * np.sqrt(5.0 / 3.0) / 2.0
    assert found.estimate == pytest.approx((1.1 + 1.21) / 2.0)
    assert [found.low, found.high] == pytest.approx([found.estimate * np.exp(-half), found.estimate * np.exp(half)])


def test_one_launch_has_no_interval() -> None:
    """Nor have launches in which the clock saw no time; nothing is NaN."""
    assert median_over_launches(np.array([0.5])) == Interval(estimate=0.5, low=0.5, high=0.5)
    assert median_over_launches(np.array([0.0, 0.5])) == Interval(estimate=0.25, low=0.0, high=0.5)
