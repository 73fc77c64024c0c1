"""Two looks of a suite raise no more false alarms than 1 %: identical arms, simulated."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.paired import (
    Calibration,
    LaunchPair,
    RatioEstimate,
    StoppingLook,
    can_stop,
    judge_table,
    random_effects,
)
from sdpa_onnx.sweep.runner import suite_looks

_BLOCKS, _TABLES, _ARMS = 16, 1500, 2
_ALPHA = 0.01


def _estimate(logs: NDArray[np.float64], launches: int) -> RatioEstimate:
    errors = np.sqrt(np.pi / 2.0) * logs.std(axis=1, ddof=1) / np.sqrt(logs.shape[1])  # of a median of normal values
    pairs = [
        LaunchPair(log_ratio=float(np.median(logs[launch])), standard_error=float(errors[launch]), blocks=_BLOCKS)
        for launch in range(launches)
    ]
    return random_effects(pairs, Calibration())


def _is_alarm(looks: tuple[StoppingLook, ...], logs: list[NDArray[np.float64]]) -> bool:
    """Whether any arm of a table of identical arms is called faster or slower; the first is the clone."""
    verdicts: dict[str, RatioVerdict] = {}
    for look in looks:
        clone, *arms = (_estimate(one, look.launches) for one in logs)
        estimates = {str(number): arm for number, arm in enumerate(arms)}
        verdicts = judge_table(estimates, clone, alpha=look.alpha)
        if can_stop(estimates, verdicts, alpha=look.alpha, last=None if look is looks[-1] else looks[-1]):
            break
    return bool({RatioVerdict.FASTER, RatioVerdict.SLOWER} & set(verdicts.values()))


@pytest.mark.slow
@pytest.mark.parametrize("between", [0.0057, 0.008], ids=["calibrated", "processes-differ-more"])
@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_identical_arms_are_seldom_called_different(noise: float, between: float) -> None:
    """With the default calibration, also where processes differ by 40 % more than it says."""
    looks = suite_looks(2, 3)
    rng = np.random.default_rng(20261130)

    def times() -> NDArray[np.float64]:
        """(launches, blocks), log seconds of one process per launch."""
        return rng.normal(0.0, between / np.sqrt(2.0), (3, 1)) + rng.normal(0.0, noise, (3, _BLOCKS))

    alarms = 0
    for _ in range(_TABLES):
        baseline = times()
        alarms += _is_alarm(looks, [times() - baseline for _ in range(_ARMS + 1)])
    assert alarms / _TABLES <= _ALPHA


def test_looks_share_the_significance_level() -> None:
    """Both looks together use 1 %, and a single one all of it."""
    assert sum(look.alpha for look in suite_looks(2, 3)) == pytest.approx(_ALPHA)
    assert suite_looks(None, 3) == suite_looks(3, 3) == (StoppingLook(launches=3, alpha=_ALPHA),)
