"""Computes medians with confidence intervals: of interleaved visits by block bootstrap, and of launches.

The input is one number per visit or launch; measures nothing. Neighbouring visits are
correlated on a shared machine, so runs of consecutive blocks are resampled.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CallTimes", "Interval", "bootstrap_median", "call_times", "median_over_launches", "median_standard_error"]

Float64 = NDArray[np.float64]

# Widens the plain percentile interval by 1 + this / sqrt(visits). Without it the interval of a median of 12 to 80
# visits contains the true value in 85 to 95 % of simulated runs, with it in 90 to 98 % for a lag-1 correlation up to
# 0.4 and in 81 to 91 % at 0.7 (600 runs each; tests/core/timing/test_statistics.py repeats part of it).
_SMALL_SAMPLE = 2.2
# Resamples: the 2.5 % point of 2000 has a standard error of about 0.35 % of probability.
_RESAMPLES = 2000
# Enough for a standard deviation: the error with 200 is 5 % (1 / sqrt(2 n)).
_SPREAD_RESAMPLES = 200
# The mean of a short series includes some of the slow variation: widen by 1 + this / visits.
# Source: docs/decisions/0006 (13 visits at a correlation of 0.8: 77 % of the true error without it).
_SHORT_SERIES = 2.0
# Limits the standard error if, by chance, each half of a few visits is on one side of the median.
_MOST_CORRELATION = 0.9
_COVERAGE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """Percentiles of single calls, seconds, and calls per second; None where there are too few calls."""

    p50: float | None
    p90: float | None
    p99: float | None
    per_second: float


def call_times(seconds: Float64) -> CallTimes:
    """Compute percentiles of calls, and how many calls fit into a second if they follow each other.

    A percentile needs at least one call above it: 10 calls for p90, 100 for p99. With so few, p99 is about the longest
    of them.

    Args:
        seconds: Of single calls, in any shape; never means of several.

    Example:
        >>> call_times(np.array([0.1, 0.1, 0.4, 0.2]))
        CallTimes(p50=0.15000000000000002, p90=None, p99=None, per_second=5.0)
    """

    def percentile(number: int) -> float | None:
        return float(np.percentile(seconds, number)) if seconds.size * (100 - number) >= 100 else None

    return CallTimes(
        p50=float(np.median(seconds)), p90=percentile(90), p99=percentile(99), per_second=float(1.0 / seconds.mean())
    )


def bootstrap_median(visits: Float64, *, seed: int = 0) -> Interval:
    """Compute the median over visits with a circular-block bootstrap interval.

    Args:
        visits: (blocks,), one statistic per visit, in the order of measurement.
        seed: Seed of the resampling.

    Source: Politis and Romano 1992 (circular blocks); block length ceil(n^(1/3)), METHOD B.4.
    """
    return _interval(visits, _resampled_medians(visits, seed, _RESAMPLES))


def median_standard_error(visits: Float64, *, seed: int = 0) -> float:
    """Compute the standard error of the median over visits by circular-block bootstrap; 0 for a single visit.

    Widened for the correlation that runs of ceil(n^(1/3)) visits miss: at a lag-1 correlation of 0.8 the plain
    bootstrap yields 61 % of the true error (40 visits), this function 85 %.

    Args:
        visits: (blocks,), in the order of measurement.
        seed: Seed of the resampling.

    Source: as `bootstrap_median`; docs/decisions/0006 for the widening.
    """
    return float(np.std(_resampled_medians(visits, seed, _SPREAD_RESAMPLES))) * _correlation_factor(visits)


def median_over_launches(medians: Float64) -> Interval:
    """Compute the median over launches with the 95 % t interval of their logarithms.

    The launches are the samples: calls of one process share the variation between processes.

    Args:
        medians: (launches,), the median of each launch, seconds. The interval of a single launch is that number.

    Source: Georges, Buytaert and Eeckhout 2007 (intervals over several invocations).
    """
    from scipy.special import stdtrit

    estimate = float(np.median(medians))
    if medians.size < 2 or not (medians > 0).all():
        return Interval(estimate=estimate, low=float(medians.min()), high=float(medians.max()))
    error = float(np.std(np.log(medians), ddof=1)) / math.sqrt(medians.size)
    half = float(stdtrit(medians.size - 1, 0.5 + _COVERAGE / 2.0)) * error
    return Interval(estimate=estimate, low=estimate * math.exp(-half), high=estimate * math.exp(half))


def _correlation_factor(visits: Float64) -> float:
    """Ratio of the standard error of a median under AR(1) correlation to that of the block bootstrap.

    Source: the variance of a median is proportional to the sum of the autocorrelations of the signs about it; runs of
    length m weight lag k by 1 - k / m (Kuensch, Ann. Statist. 17, 1989).
    """
    signs = np.sign(visits - np.median(visits))
    power = float(signs @ signs)
    lag = min(max(float(signs[1:] @ signs[:-1]) / power, 0.0), _MOST_CORRELATION) if power > 0.0 else 0.0
    length = _run_length(visits.size)
    kept = 1.0 + 2.0 * sum((1.0 - step / length) * lag**step for step in range(1, length))
    return math.sqrt((1.0 + lag) / (1.0 - lag) / kept) * (1.0 + _SHORT_SERIES / visits.size)


def _run_length(count: int) -> int:
    length: int = math.ceil(count ** (1 / 3))
    return length


def _resampled_medians(visits: Float64, seed: int, resamples: int) -> Float64:
    """Compute (resamples,) medians of visits drawn in circular runs of ceil(count^(1/3)) neighbours."""
    count = visits.size
    length = _run_length(count)
    runs = math.ceil(count / length)
    starts = np.random.default_rng(seed).integers(0, count, (resamples, runs))
    indices = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :count] % count
    medians: Float64 = np.median(visits[indices], axis=1)
    return medians


def _interval(visits: Float64, resampled: Float64) -> Interval:
    estimate = float(np.median(visits))
    tail = 100.0 * (1.0 - _COVERAGE) / 2.0
    low, high = np.percentile(resampled, [tail, 100.0 - tail])
    wider = 1.0 + _SMALL_SAMPLE / math.sqrt(visits.size)
    below, above = max(estimate - float(low), 0.0), max(float(high) - estimate, 0.0)
    return Interval(
        estimate=estimate,
        low=max(estimate - wider * below, float(visits.min())),  # a median is within the range of the data
        high=min(estimate + wider * above, float(visits.max())),
    )
