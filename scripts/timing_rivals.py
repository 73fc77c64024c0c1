"""Apply other comparison methods to the same recorded seconds, each with its own default rule.

The input is the raw calls of two arms in time order: (launches, blocks, calls), wall seconds. Measures nothing.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["RIVALS"]

Float = NDArray[np.floating]

# pytest-benchmark's documented example, `--benchmark-compare-fail=min:5%`, and the same for its default sort, the mean.
_FAILS_ABOVE = 1.05
# benchstat reports a difference at this level.
_LEVEL = 0.05


def _halves(base: Float, head: Float) -> tuple[Float, Float]:
    """The baseline's first half and the other arm's second half: A, then B, like two runs of a benchmark."""
    half = base.shape[0] // 2
    return base[:half].ravel(), head[half:].ravel()


def _minimum_apart(base: Float, head: Float) -> bool:
    first, second = _halves(base, head)
    return bool(second.min() > _FAILS_ABOVE * first.min())


def _mean_apart(base: Float, head: Float) -> bool:
    first, second = _halves(base, head)
    return bool(second.mean() > _FAILS_ABOVE * first.mean())


def _median_apart(base: Float, head: Float) -> bool:
    first, second = _halves(base, head)
    return bool(np.median(second) > _FAILS_ABOVE * np.median(first))


def _mann_whitney(base: Float, head: Float) -> bool:
    from scipy.stats import mannwhitneyu

    first, second = _halves(base, head)
    return bool(
        mannwhitneyu(second, first, alternative="two-sided").pvalue < _LEVEL and np.median(second) > np.median(first)
    )


def _mann_whitney_interleaved(base: Float, head: Float) -> bool:
    from scipy.stats import mannwhitneyu

    found = mannwhitneyu(head.ravel(), base.ravel(), alternative="two-sided")
    return bool(found.pvalue < _LEVEL and np.median(head) > np.median(base))


def _minimum_interleaved(base: Float, head: Float) -> bool:
    return bool(head.min() > (1 + (_FAILS_ABOVE - 1) / 2) * base.min())


RIVALS: Mapping[str, Callable[[Float, Float], bool]] = {
    "pytest-benchmark compare, min:5%": _minimum_apart,
    "pytest-benchmark compare, mean:5%": _mean_apart,
    "pytest-benchmark compare, median:5%": _median_apart,
    "Mann-Whitney on raw calls, 5 %, A then B": _mann_whitney,
    "Mann-Whitney on raw calls, 5 %, interleaved": _mann_whitney_interleaved,
    "minimum, interleaved, above 2.5 %": _minimum_interleaved,
}
