"""The time left of a run: known from the start, and never at its end before the work is."""

import pytest

from sdpa_onnx.cli.progress import Progress


def test_time_left_is_known_before_anything_is_done() -> None:
    """The first estimate is the expectation; without trust in it nothing is known."""
    assert Progress(100.0, now=lambda: 0.0, trusted_seconds=30.0).seconds_left() == 100.0
    assert Progress(100.0, now=lambda: 0.0).seconds_left() is None


def test_time_left_never_ends_before_the_work() -> None:
    """A job that takes far longer than expected leaves the time of what follows."""
    clock = [0.0]
    progress = Progress(100.0, now=lambda: clock[0], trusted_seconds=30.0)
    clock[0] = 500.0
    assert progress.seconds_left() == pytest.approx(25.0)
