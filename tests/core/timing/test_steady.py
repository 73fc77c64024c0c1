"""When a warm-up ends: on curves that are known, at the rule's limits, and how often too early."""

from collections.abc import Sequence

import numpy as np
import pytest

from sdpa_onnx.core.timing.steady import WarmUp, judge_warm_up

STEADY, NOT_YET, NEVER = WarmUp.STEADY, WarmUp.NOT_YET, WarmUp.NEVER


def judge(medians: Sequence[float], *, seconds: float = 0.1, calls: int | None = None) -> WarmUp:
    return judge_warm_up(medians, calls=calls or 5 * len(medians), seconds=seconds, limit_seconds=2.0)


def visits_until_steady(medians: Sequence[float]) -> int | None:
    for visits in range(1, len(medians) + 1):
        if judge(medians[:visits], seconds=0.01 * visits) is STEADY:
            return visits
    return None


def test_an_even_arm_is_steady_after_twelve_visits() -> None:
    """Not after eleven, and in any unit."""
    assert [visits for visits in range(1, 14) if judge([3e6] * visits) is STEADY] == [12, 13]
    assert judge([0.0] * 12) is STEADY


@pytest.mark.parametrize(("percent", "word"), [(0.99, STEADY), (1.01, NOT_YET), (-0.98, STEADY), (-1.01, NOT_YET)])
def test_thirds_agree_within_one_percent(percent: float, word: WarmUp) -> None:
    """The last third against the one before, both ways: becoming slower is not steady either."""
    assert judge([1.0] * 8 + [1 + percent / 100] * 5) is word


def test_one_visit_earlier_it_must_have_been_so_too() -> None:
    """Agreement by chance rarely occurs twice: here it occurs at the twelfth visit and stays at the next."""
    once = [1.0] * 8 + [1.015, 1.015, 1.0, 1.0]
    assert judge(once) is NOT_YET
    assert judge([*once, 1.0]) is STEADY


@pytest.mark.parametrize(
    "decay", [1 + 0.5 * np.exp(-np.arange(200) / visits) for visits in (2, 5, 20)], ids=["2", "5", "20"]
)
def test_a_decay_is_waited_for(decay: Sequence[float]) -> None:
    """Half more at first: steady only when less than 2 % is left, though each visit differs little from the next."""
    visits = visits_until_steady(list(decay))
    assert visits is not None
    assert decay[visits] < 1.02


def test_slow_first_visits_do_not_count() -> None:
    """The first third may be anything."""
    assert judge([900.0, 30.0, 2.0, 1.5] + [1.0] * 8) is STEADY


def test_noise_alone_does_not_keep_an_arm_from_being_steady() -> None:
    """3 % a visit: in fifty of fifty warm-ups; three visits within 2 % of the best are rare then."""
    rng = np.random.default_rng(0)
    assert all(visits_until_steady(list(np.exp(0.03 * rng.standard_normal(200)))) for _ in range(50))


def test_a_step_after_eight_visits_is_seen() -> None:
    """With noise of 1 %, in fifty of fifty warm-ups."""
    rng = np.random.default_rng(0)
    curve = np.where(np.arange(200) < 8, 1.2, 1.0)
    found = [visits_until_steady(list(curve * np.exp(0.01 * rng.standard_normal(200)))) for _ in range(50)]
    assert all(visits is not None and visits > 8 for visits in found)


def test_an_arm_that_only_grows_is_never_steady() -> None:
    """Given up after the limit, not at it."""
    growing = [1.1**visit for visit in range(40)]
    assert judge(growing, seconds=2.0) is NOT_YET
    assert judge(growing, seconds=2.001) is NEVER


def test_a_slow_arm_is_steady_with_three_visits_that_agree() -> None:
    """The time is up before twelve visits: within 2 %, and at least five calls."""
    assert judge([9.0, 1.0, 1.019], seconds=2.1, calls=6) is STEADY
    assert judge([9.0, 1.0, 1.021], seconds=2.1, calls=6) is NEVER
    assert judge([1.0, 1.0], seconds=2.1, calls=10) is NEVER
    assert judge([1.0, 1.0, 1.0], seconds=2.1, calls=4) is NEVER
    assert judge([1.0, 1.0, 1.0], seconds=1.9, calls=6) is NOT_YET
