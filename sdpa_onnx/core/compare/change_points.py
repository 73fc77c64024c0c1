"""Detects change points in a series of log ratios, with a bounded false alarm rate.

Each run is one number with its own standard error; the additional variation between runs is estimated from the series.
Knows nothing of runs, machines or versions, and explains no change. Existing libraries (E-divisive as in Hunter,
ruptures) accept numbers without standard errors only.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["HISTORY_ALPHA", "RUN_SPREAD", "ChangePoint", "RunSpread", "change_points", "run_spread"]

Float64 = NDArray[np.float64]

# False alarm rate of a history without any change, over all its series. Twin: docs/howto/ci.md.
HISTORY_ALPHA = 0.01

# Median of a squared standard normal number: the square of the 75 % quantile.
_MEDIAN_OF_SQUARES = 0.4549
# Degrees of freedom per difference of neighbours: the median of squares has an efficiency of 37 % for normal data, and
# neighbouring differences share a run. With fewer than _LEAST_DIFFERENCES, one step would count as spread.
_DEGREES_A_DIFFERENCE = 0.3
_LEAST_DIFFERENCES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpread:
    """Variation between runs of an unchanged arm, in addition to the standard errors of the runs.

    Args:
        sd: Standard deviation of a log ratio.
        degrees: Degrees of freedom of this estimate.
    """

    sd: float
    degrees: float


# Prior for a machine without history. Source: PEERS 4.3 (0.56 to 0.85 % per run on dedicated
# machines), rounded up; the weight is that of the calibration of METHOD B.4.
RUN_SPREAD = RunSpread(sd=0.01, degrees=8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A change of level.

    Args:
        index: Index of the first value of the new level.
        log_before, log_after: The levels.
        log_change: New level minus old; log_low, log_high: its 99 % interval.
        p_value: Two-sided, corrected for every position and series that was tested.
        before, after: Number of values of each level.
    """

    index: int
    log_before: float
    log_after: float
    log_low: float
    log_high: float
    p_value: float
    before: int
    after: int

    @property
    def log_change(self) -> float:
        return self.log_after - self.log_before


def change_points(
    values: Sequence[float],
    errors: Sequence[float],
    *,
    series: int = 1,
    alpha: float = HISTORY_ALPHA,
    prior: RunSpread = RUN_SPREAD,
) -> list[ChangePoint]:
    """Find where the level changed, by binary segmentation: the most significant position first, then both sides.

    Without any change, the probability of reporting one is at most `alpha` over all series together, if
    runs differ by no more than `run_spread` finds (simulated in `tests/core/compare/test_change_points.py`).

    Args:
        values: Log ratios in chronological order.
        errors: Standard error of each.
        series: Number of series that are tested together (Bonferroni).
        alpha: False alarm rate over all of them.
        prior: Prior of the spread between runs.

    Returns:
        Change points in chronological order.

    Example:
        >>> [point.index for point in change_points([0.0, 0.001, -0.001, 0.2, 0.201], [0.002] * 5)]
        [3]
    """
    spread = run_spread(values, errors, prior=prior)
    ratios = np.asarray(values, dtype=np.float64)
    weights = 1.0 / (np.square(errors) + spread.sd**2)
    test = _Test(degrees=spread.degrees, alpha=alpha, series=series)
    cuts = dict(sorted(_cuts(ratios, weights, test)))
    ends = [0, *cuts, ratios.size]
    # Recompute the sizes between neighbouring levels: the first cuts had several levels on a side.
    return [
        _change_point(_split(ratios[first:last], weights[first:last], cut - first), cut, cuts[cut], test)
        for first, cut, last in zip(ends, ends[1:], ends[2:], strict=False)
    ]


def run_spread(values: Sequence[float], errors: Sequence[float], *, prior: RunSpread = RUN_SPREAD) -> RunSpread:
    """Estimate the spread between runs from differences of neighbours, which a few changes of level hardly affect.

    Source: the median of squared differences as a robust scale; combined with a prior as in METHOD B.4.
    """
    differences = np.diff(np.asarray(values, dtype=np.float64))
    if differences.size < _LEAST_DIFFERENCES:
        return prior
    total = float(np.median(np.square(differences))) / _MEDIAN_OF_SQUARES / 2.0
    seen = max(0.0, total - float(np.mean(np.square(errors))))
    weight = _DEGREES_A_DIFFERENCE * differences.size
    degrees = prior.degrees + weight
    return RunSpread(sd=math.sqrt((prior.degrees * prior.sd**2 + weight * seen) / degrees), degrees=degrees)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """Parameters of the test of a difference of two levels."""

    degrees: float
    alpha: float
    series: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """Weighted means on both sides of a cut."""

    before: float
    after: float
    standard_error: float
    counts: tuple[int, int]

    @property
    def score(self) -> float:
        """Difference of the means in standard errors."""
        return abs(self.after - self.before) / self.standard_error


def _cuts(values: Float64, weights: Float64, test: _Test, start: int = 0) -> Iterator[tuple[int, float]]:
    """Yield the first index of every new level and its p-value."""
    from scipy.stats import t as student

    places = range(1, values.size)
    if not places:
        return
    splits = {cut: _split(values, weights, cut) for cut in places}
    cut = max(splits, key=lambda one: splits[one].score)
    p_value = 2.0 * float(student.sf(splits[cut].score, test.degrees)) * len(places) * test.series
    if p_value < test.alpha:
        yield start + cut, p_value
        yield from _cuts(values[:cut], weights[:cut], test, start)
        yield from _cuts(values[cut:], weights[cut:], test, start + cut)


def _split(values: Float64, weights: Float64, cut: int) -> _Split:
    before, after = weights[:cut], weights[cut:]
    return _Split(
        before=float(before @ values[:cut] / before.sum()),
        after=float(after @ values[cut:] / after.sum()),
        standard_error=math.sqrt(1.0 / float(before.sum()) + 1.0 / float(after.sum())),
        counts=(cut, values.size - cut),
    )


def _change_point(split: _Split, index: int, p_value: float, test: _Test) -> ChangePoint:
    from scipy.stats import t as student

    half = split.standard_error * float(student.ppf(1.0 - HISTORY_ALPHA / 2.0, test.degrees))
    change = split.after - split.before
    return ChangePoint(
        index=index,
        log_before=split.before,
        log_after=split.after,
        log_low=change - half,
        log_high=change + half,
        p_value=p_value,
        before=split.counts[0],
        after=split.counts[1],
    )
