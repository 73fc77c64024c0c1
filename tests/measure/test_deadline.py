"""A deadline counts the seconds that are left on the clock that it was made with."""

import math
import threading

import pytest

from sdpa_onnx.cli.time_limit import command_deadline
from sdpa_onnx.errors import PlanError
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.measure.time_limit import interrupted_at, limited_to


class _Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_counts_from_the_moment_it_was_made() -> None:
    """The time before it was made does not count, the time after it does."""
    clock = _Clock()
    deadline = Deadline(budget_seconds=10.0, now=clock)
    clock.seconds += 4.0
    assert deadline.seconds_left == pytest.approx(6.0)


@pytest.mark.parametrize(("spent", "is_past"), [(9.99, False), (10.0, True), (25.0, True)])
def test_is_past_when_nothing_is_left(spent: float, is_past: bool) -> None:
    """It is past at its end and after it, and the time left is never negative."""
    clock = _Clock()
    deadline = Deadline(budget_seconds=10.0, now=clock)
    clock.seconds += spent
    assert deadline.is_past is is_past
    assert deadline.seconds_left >= 0.0


def test_allows_what_ends_in_time() -> None:
    """Work that takes exactly the time that is left is allowed, longer work is not."""
    deadline = Deadline(budget_seconds=10.0, now=lambda: 4.0, start=0.0)
    assert deadline.allows(6.0)
    assert not deadline.allows(6.01)


def test_without_a_limit_everything_is_allowed() -> None:
    """Without a budget there is no end."""
    deadline = Deadline()
    assert deadline.seconds_left == math.inf
    assert deadline.allows(1e9)
    assert not deadline.is_past


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "budget is -1 s. Give at least 0.1."),
        (0, "budget is 0 s. Give at least 0.1."),
        (0.099, "budget is 0.099 s. Give at least 0.1."),
        (math.nan, "budget is nan, not a number of seconds. Give at least 0.1."),
        (math.inf, "budget is inf, not a number of seconds. Give at least 0.1."),
        ("x", "budget is 'x', not a number of seconds. Give at least 0.1."),
        (True, "budget is True, not a number of seconds. Give at least 0.1."),
    ],
    ids=str,
)
def test_what_is_no_limit_is_refused(value: float, message: str) -> None:
    """The same sentence for a command and a function."""
    for limit in (limited_to, command_deadline):
        with pytest.raises(PlanError) as caught:
            limit(value)
        assert str(caught.value) == message


def test_longest_limit() -> None:
    """A limit that no timer can wait for is refused; the longest that one can is kept by a timer."""
    with interrupted_at(limited_to(threading.TIMEOUT_MAX)):
        pass
    with pytest.raises(PlanError) as caught:
        limited_to(1e30)
    assert str(caught.value).startswith("budget is 1e+30 s, longer than a timer waits. Give at most ")
    assert limited_to(0.1).budget_seconds == pytest.approx(0.085)
