"""Medians and paired ratios with intervals, by block bootstrap over interleaved visits.

Takes one number a visit and arm; measures nothing. Neighbouring visits are
correlated on a shared machine, so whole runs of blocks are resampled.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Interval", "bootstrap_median", "bootstrap_ratio"]

Float64 = NDArray[np.float64]

# How much wider than the plain percentile interval, as 1 + this / sqrt(visits). Without it the interval of a median of
# 12 to 80 visits holds the truth in 85 to 95 % of simulated runs, with it in 90 to 98 % for a lag-1 correlation up to
# 0.4 and in 81 to 91 % at 0.7 (600 runs each; tests/core/test_statistics.py repeats the middle of it).
_SMALL_SAMPLE = 2.2
# Resamples: the 2.5 % point of 2000 has a standard error of about 0.35 % of probability.
_RESAMPLES = 2000
_COVERAGE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float


def bootstrap_median(visits: Float64, *, seed: int = 0) -> Interval:
    """Median over visits with a circular-block bootstrap interval.

    Args:
        visits: (blocks,), one statistic a visit, in the order of measurement.
        seed: Seed of the resampling.

    Source: Politis and Romano 1992 (circular blocks); block length ceil(n^(1/3)), METHOD B.4.
    """
    resampled = np.median(visits[_block_indices(visits.size, seed)], axis=1)
    return _interval(visits, resampled)


def bootstrap_ratio(visits: Float64, baseline: Float64, *, seed: int = 0) -> Interval:
    """Median paired ratio visits / baseline with its interval.

    The two arms were visited in the same blocks, so what slows a block slows both.

    Args:
        visits: (blocks,), this arm.
        baseline: (blocks,), the arm it is compared with.
        seed: Seed of the resampling.

    Source: median over blocks of the log ratio, METHOD B.4.
    """
    logs = np.log(visits / baseline)
    interval = bootstrap_median(logs, seed=seed)
    return Interval(estimate=math.exp(interval.estimate), low=math.exp(interval.low), high=math.exp(interval.high))


def _block_indices(count: int, seed: int) -> NDArray[np.int64]:
    """(resamples, count) indices, in runs of ceil(count^(1/3)) neighbours, the last beside the first."""
    length = math.ceil(count ** (1 / 3))
    runs = math.ceil(count / length)
    starts = np.random.default_rng(seed).integers(0, count, (_RESAMPLES, runs))
    indices = (starts[:, :, None] + np.arange(length)).reshape(_RESAMPLES, -1)[:, :count] % count
    return indices.astype(np.int64)


def _interval(visits: Float64, resampled: Float64) -> Interval:
    estimate = float(np.median(visits))
    tail = 100.0 * (1.0 - _COVERAGE) / 2.0
    low, high = np.percentile(resampled, [tail, 100.0 - tail])
    wider = 1.0 + _SMALL_SAMPLE / math.sqrt(visits.size)
    below, above = max(estimate - float(low), 0.0), max(float(high) - estimate, 0.0)
    return Interval(
        estimate=estimate,
        low=max(estimate - wider * below, float(visits.min())),  # a median lies inside what was measured
        high=min(estimate + wider * above, float(visits.max())),
    )
