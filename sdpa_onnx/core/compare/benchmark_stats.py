"""The statistics of one benchmark in pytest-benchmark's JSON, so that its own tools read our files.

No verdict depends on them. They are computed here since pytest-benchmark is only a test requirement:
`--sdpa-json` writes files without it.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from sdpa_onnx.errors import CaseError

__all__ = ["round_stats"]

# Tukey's fences, as a multiple of the interquartile range.
_FENCE = 1.5


def round_stats(rounds: Sequence[float]) -> dict[str, float | int | str]:
    """Summarise rounds exactly as pytest-benchmark does.

    Args:
        rounds: Seconds per call, one number per round.

    Raises:
        CaseError: If there are no rounds.

    Source: `pytest_benchmark.stats.Stats` 5.3 (a test checks that both are equal).
    """
    if not rounds:
        raise CaseError("There is no round to summarise.", hint="Measure at least one.")
    ordered = sorted(rounds)
    mean, total = statistics.mean(ordered), sum(rounds)
    stddev = statistics.stdev(ordered) if len(ordered) > 1 else 0.0
    first, third = _quartiles(ordered)
    iqr = third - first
    low_fence, high_fence = first - _FENCE * iqr, third + _FENCE * iqr
    far = _outside(ordered, mean - stddev, mean + stddev)
    outliers = _outside(ordered, low_fence, high_fence)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": stddev,
        "rounds": len(ordered),
        "median": statistics.median(ordered),
        "iqr": iqr,
        "q1": first,
        "q3": third,
        "iqr_outliers": outliers,
        "stddev_outliers": far,
        "outliers": f"{far};{outliers}",
        "ld15iqr": ordered[bisect_left(ordered, low_fence)],
        "hd15iqr": ordered[bisect_right(ordered, high_fence) - 1],
        "ops": len(ordered) / total if total else 0.0,
        "total": total,
    }


def _outside(ordered: Sequence[float], low: float, high: float) -> int:
    return bisect_left(ordered, low) + len(ordered) - bisect_right(ordered, high)


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    """First and third quartile: for an even number the medians of the halves, for an odd number Method 3.

    Source: https://en.wikipedia.org/wiki/Quartile#Computing_methods, as in pytest-benchmark.
    """
    count = len(ordered)
    if count == 1:
        return ordered[0], ordered[0]
    if count % 2 == 0:
        return statistics.median(ordered[: count // 2]), statistics.median(ordered[count // 2 :])
    quarter = count // 4
    if count % 4 == 1:
        return (
            0.25 * ordered[quarter - 1] + 0.75 * ordered[quarter],
            0.75 * ordered[3 * quarter] + 0.25 * ordered[3 * quarter + 1],
        )
    return (
        0.75 * ordered[quarter] + 0.25 * ordered[quarter + 1],
        0.25 * ordered[3 * quarter + 1] + 0.75 * ordered[3 * quarter + 2],
    )
