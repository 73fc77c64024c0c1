"""Percentiles of calls: none where there are too few calls for it, and the rate is that of the mean."""

import numpy as np
import pytest

from sdpa_onnx.core.timing.statistics import call_times


@pytest.mark.parametrize(
    ("calls", "has_p90", "has_p99"),
    [(1, False, False), (9, False, False), (10, True, False), (99, True, False), (100, True, True)],
)
def test_a_percentile_needs_a_call_above_it(calls: int, *, has_p90: bool, has_p99: bool) -> None:
    """Ten calls for p90 and a hundred for p99."""
    found = call_times(np.full(calls, 0.5))
    assert (found.p90 is not None, found.p99 is not None) == (has_p90, has_p99)
    assert (found.p50, found.per_second) == (0.5, 2.0)


def test_percentiles_of_all_launches_and_blocks() -> None:
    """The shape does not matter; a slow tail moves p99 and the rate, not p50."""
    seconds = np.full((4, 50, 5), 1e-3)
    seconds[0, 0, :] = seconds[1, 0, :] = seconds[2, 0, :] = 0.1  # 15 of 1000 calls
    found = call_times(seconds)
    assert (found.p50, found.p90, found.p99) == (1e-3, 1e-3, pytest.approx(0.1))
    assert found.per_second == pytest.approx(1000 / (0.985 + 1.5))
