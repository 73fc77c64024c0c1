import math

import numpy as np
import pytest

from sdpa_onnx.core.compare.change_points import HISTORY_ALPHA, RUN_SPREAD, RunSpread, change_points, run_spread

# Standard error of one run's log ratio: about what four launches of an arm give (METHOD B.4).
RUN_ERROR = 0.003
SERIES = 10


def _noise(rng: np.random.Generator, runs: int, spread: float) -> list[float]:
    return list(rng.normal(0.0, math.hypot(spread, RUN_ERROR), runs))


def _false_alarms(histories: int, runs: int, spread: float) -> int:
    """Number of histories of `SERIES` unchanged series with at least one false change point."""
    rng = np.random.default_rng(6)
    errors = [RUN_ERROR] * runs
    return sum(
        any(change_points(_noise(rng, runs, spread), errors, series=SERIES) for _ in range(SERIES))
        for _ in range(histories)
    )


@pytest.mark.parametrize("runs", [2, 4, 5, 12])
def test_a_history_without_a_change_stays_quiet(runs: int) -> None:
    """Runs that scatter as the prior assumes: no false change point in 30 histories."""
    assert _false_alarms(30, runs, RUN_SPREAD.sd) == 0


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.002, 0.005, 0.01, 0.015])
@pytest.mark.parametrize("runs", [2, 3, 5, 10, 20, 50])
def test_false_alarms_are_as_rare_as_said(runs: int, spread: float) -> None:
    """Over 400 histories, up to 1.5 times the spread of the prior: at most 2 % have a false change point."""
    assert _false_alarms(400, runs, spread) <= 8


@pytest.mark.parametrize(("step", "runs_after", "least"), [(0.05, 3, 0.95), (0.1, 1, 0.95), (0.03, 10, 0.95)])
def test_a_step_is_found(step: float, runs_after: int, least: float) -> None:
    """After 15 runs with a spread of 0.5 %: 5 % is found in three runs, 10 % in one, 3 % in ten, where it is."""
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(60):
        values = np.array(_noise(rng, 15 + runs_after, 0.005))
        values[15:] += step
        points = change_points(list(values), [RUN_ERROR] * values.size, series=SERIES)
        found += len(points) == 1 and abs(points[0].index - 15) <= 1
    assert found >= 60 * least


def test_levels_are_told_in_order_and_sized_between_neighbours() -> None:
    """Up by 20 % and back again is two changes of the same size, with the runs of each level counted."""
    up = math.log(1.2)
    first, second = change_points([0.0] * 4 + [up] * 3 + [0.0] * 5, [RUN_ERROR] * 12)
    assert (first.index, first.before, first.after) == (4, 4, 3)
    assert (second.index, second.before, second.after) == (7, 3, 5)
    assert first.log_change == pytest.approx(up)
    assert second.log_change == pytest.approx(-up)
    assert max(first.p_value, second.p_value) < HISTORY_ALPHA


def test_a_run_with_a_wide_interval_counts_less() -> None:
    """The same step in the newest run is detected if its interval is narrow, and not if it is wide."""
    values = [0.0] * 8 + [0.15]
    assert change_points(values, [RUN_ERROR] * 9)
    assert not change_points(values, [RUN_ERROR] * 8 + [0.1])


def test_more_series_ask_for_more() -> None:
    """A change that is significant in one series is chance among a thousand."""
    values = [0.0, 0.0, 0.0, 0.0, 0.09]
    assert change_points(values, [RUN_ERROR] * 5, series=1)
    assert not change_points(values, [RUN_ERROR] * 5, series=1000)


@pytest.mark.parametrize("values", [[], [0.3]])
def test_one_run_has_no_change(values: list[float]) -> None:
    """There is nothing to compare."""
    assert change_points(values, [RUN_ERROR] * len(values)) == []


def test_spread_is_believed_until_the_history_says_more() -> None:
    """Up to four runs the prior is used; then a quiet history lowers it, a noisy one raises it, a step does not."""
    rng = np.random.default_rng(8)
    errors = [RUN_ERROR] * 60
    assert run_spread([0.0, 0.5, 0.0, 0.5], errors[:4]) == RUN_SPREAD
    assert run_spread(_noise(rng, 60, 0.0), errors).sd < 0.007
    noisy = run_spread(_noise(rng, 60, 0.03), errors)
    assert 0.018 < noisy.sd < 0.04
    assert noisy.degrees == pytest.approx(RUN_SPREAD.degrees + 0.3 * 59)
    quiet = _noise(rng, 30, 0.0)
    stepped = [value + (0.3 if number >= 15 else 0.0) for number, value in enumerate(quiet)]
    assert run_spread(stepped, errors[:30]).sd == pytest.approx(run_spread(quiet, errors[:30]).sd, abs=0.001)


def test_a_believed_spread_can_be_given() -> None:
    """On a quiet machine smaller steps are detected."""
    values, errors = [0.0, 0.0, 0.03, 0.03], [0.001] * 4
    assert not change_points(values, errors)
    assert change_points(values, errors, prior=RunSpread(sd=0.002, degrees=8.0))
