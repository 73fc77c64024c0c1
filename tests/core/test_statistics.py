"""Intervals: coverage on correlated noise, equal arms, planted differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sdpa_onnx.core.statistics import Interval, bootstrap_median, bootstrap_ratio

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
    """Roughly 95 % of them; resampling single visits would give 83 % where neighbours are correlated."""
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


def arms(seed: int, factor: float, *, noise: float = 0.03) -> tuple[Float64, Float64]:
    """Two arms in one noisy stretch of time: the machine slows both, each has its own noise."""
    rng = np.random.default_rng(seed)
    machine = np.exp(0.2 * correlated(rng, VISITS, phi=0.8))
    own = [np.exp(noise * correlated(rng, VISITS)) for _ in range(2)]
    return 1e-3 * factor * machine * own[0], 1e-3 * machine * own[1]


def test_identical_arms_have_ratio_one() -> None:
    """The very same numbers: exactly one, without width."""
    visits, _ = arms(0, 1.0)
    assert bootstrap_ratio(visits, visits) == Interval(estimate=1.0, low=1.0, high=1.0)


def test_equal_arms_contain_one() -> None:
    """Nineteen of twenty intervals, roughly, hold the ratio 1."""
    held = sum(i.low <= 1 <= i.high for i in (bootstrap_ratio(*arms(seed, 1.0), seed=seed) for seed in range(200)))
    assert 170 <= held <= 198


@pytest.mark.parametrize("factor", [1.05, 1 / 1.05])
def test_a_planted_five_percent_is_found(factor: float) -> None:
    """Though the machine itself varies by 20 %, because blocks are paired."""
    for seed in range(20):
        interval = bootstrap_ratio(*arms(seed, factor, noise=0.01), seed=seed)
        assert interval.low < interval.estimate < interval.high
        assert interval.estimate == pytest.approx(factor, rel=0.015)
        assert not interval.low <= 1 <= interval.high


def test_swapping_the_arms_inverts_the_ratio() -> None:
    """The log ratio changes its sign, the interval its ends."""
    there = bootstrap_ratio(*arms(3, 1.2))
    back = bootstrap_ratio(*reversed(arms(3, 1.2)))
    assert back.estimate == pytest.approx(1 / there.estimate, rel=1e-9)
    # The percentiles of an even number of resamples interpolate between neighbours.
    assert back.low == pytest.approx(1 / there.high, rel=1e-3)
    assert back.high == pytest.approx(1 / there.low, rel=1e-3)


def test_the_same_seed_gives_the_same_interval() -> None:
    """A report is repeatable; another seed moves the ends only."""
    visits, _ = arms(5, 1.0)
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
