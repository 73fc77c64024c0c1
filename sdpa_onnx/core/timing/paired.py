"""Decides whether one arm is slower than another from several launches of both: estimate, confidence interval, verdict.

The input is one number per visit, arm and launch; measures nothing. Two processes that run the same model differ by
some tenths of a percent during their whole lifetime, so the launches are the samples, not the calls.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.holm import holm
from sdpa_onnx.core.timing.statistics import median_standard_error
from sdpa_onnx.errors import CaseError

__all__ = [
    "LOOKS",
    "Calibration",
    "LaunchPair",
    "RatioEstimate",
    "StoppingLook",
    "can_stop",
    "judge_table",
    "launch_pair",
    "moved",
    "random_effects",
]

Float64 = NDArray[np.float64]

# A smaller change counts as none, even if it is significant: one extra call of 0.5 % changed times by 2 %.
# Log ratios, so that swapping the arms only exchanges FASTER and SLOWER. Source: METHOD B.3, B.4.
_LEAST_EFFECT = math.log(1.01)
# Margin of equivalence, log ratio. Source: METHOD B.4 (delta = 2 %).
_EQUAL_MARGIN = math.log(1.02)
# Standard normal quantile of 80 % power. Source: METHOD B.4 (MDE = half * (1 + 0.84 / t)).
_POWER_QUANTILE = 0.84
# Fewest launches for the test of drift, and its false alarm rate. Source: docs/decisions/0006.
_LEAST_DRIFTS, _DRIFT_ALPHA = 3, 0.01
# Standard errors of the change of an estimate by more launches that may be luck. Source: docs/decisions/0006.
_HOPE = 2.0
# Limit of `launches_needed`: beyond it the machine is the problem, not the number of launches.
_MOST_LAUNCHES = 1000
# Limits of an interval stay finite: e to this power is near the largest float64.
_MOST_LOG = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Variation between processes of the same model on a class of machine.

    Args:
        between_sd: Standard deviation of the log ratio of one pair of processes, without sampling error.
        degrees: Degrees of freedom of this estimate for the current machine.
        machine: Class of machine on which it was measured; "" for the default.

    Source: METHOD B.4 (s0 = 0.57 %, nu0 = 8 on the machine where it was measured). For another machine it has half
    the degrees of freedom: docs/decisions/0006.
    """

    between_sd: float = 0.0057
    degrees: float = 4.0
    machine: str = ""

    @property
    def figures(self) -> dict[str, float]:
        """The values as stored in a run."""
        return {"between_sd": self.between_sd, "degrees": self.degrees}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingLook:
    """One interim look at which the test may stop: the number of launches, and its share of alpha."""

    launches: int
    alpha: float


# Alpha of 1 % is spent over three looks (Bonferroni). Source: METHOD B.4.
LOOKS = (
    StoppingLook(launches=4, alpha=0.002),
    StoppingLook(launches=6, alpha=0.003),
    StoppingLook(launches=8, alpha=0.005),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPair:
    """One launch of two arms.

    Args:
        log_ratio: Median over its blocks.
        standard_error: Standard error of that median, by bootstrap.
        blocks: Number of blocks used.
        drift: Median log ratio of the last third of the blocks minus that of the first third.
    """

    log_ratio: float
    standard_error: float
    blocks: int
    drift: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioEstimate:
    """The log ratio of two arms over all launches.

    Args:
        log_ratio: Mean over launches.
        standard_error: Standard error of the mean, including differences between processes.
        degrees: Degrees of freedom of its t distribution.
        launches: Number of launches.
    """

    log_ratio: float
    standard_error: float
    degrees: float
    launches: int

    @property
    def ratio(self) -> float:
        """Time of the arm over the baseline's; below 1 is faster."""
        return math.exp(self.log_ratio)

    def interval(self, alpha: float) -> tuple[float, float]:
        """Two-sided 1 - alpha confidence interval of the ratio: lower and upper limit."""
        half = self.half_width(alpha)
        limits = (self.log_ratio - half, self.log_ratio + half)
        low, high = (math.exp(min(max(limit, -_MOST_LOG), _MOST_LOG)) for limit in limits)
        return low, high

    def half_width(self, alpha: float) -> float:
        """Half the width of the two-sided 1 - alpha confidence interval of the log ratio."""
        return _quantile(alpha, self.degrees) * self.standard_error

    def p_value(self) -> float:
        """Two-sided p-value of the hypothesis that the ratio is 1."""
        from scipy.special import stdtr

        if self.standard_error == 0.0:
            return float(self.log_ratio == 0.0)
        return float(2.0 * stdtr(self.degrees, -abs(self.log_ratio) / self.standard_error))

    def detectable(self, alpha: float) -> float:
        """Smallest relative slow-down that is detected with 80 % power.

        Source: METHOD B.4: exp(half * (1 + 0.84 / t)) - 1, and half = t * standard error.
        """
        return math.expm1((_quantile(alpha, self.degrees) + _POWER_QUANTILE) * self.standard_error)

    def launches_needed(self, alpha: float) -> int:
        """Estimate how many more launches would decide, at the observed effect; 0 if already decided.

        Assumes that future launches scatter as the observed ones; at most 1000.
        """
        launches = np.arange(self.launches, _MOST_LAUNCHES + self.launches, dtype=np.float64)
        degrees = self.degrees + (launches - self.launches)
        half = _quantiles(alpha, degrees) * self.standard_error * np.sqrt(self.launches / launches)
        effect = abs(self.log_ratio)
        decides = effect + half <= _EQUAL_MARGIN
        if effect > _LEAST_EFFECT:
            decides |= half < effect
        return int(np.argmax(decides)) if decides.any() else _MOST_LAUNCHES

    def may_decide(self, last: StoppingLook) -> bool:
        """Whether there may be a verdict at a later look: False if two standard errors of luck do not give one.

        Assumes that future launches scatter as the observed ones.

        Args:
            last: A look with more launches.
        """
        share = math.sqrt(self.launches / last.launches)
        half = _quantile(last.alpha, self.degrees + last.launches - self.launches) * self.standard_error * share
        luck = _HOPE * self.standard_error * math.sqrt(1.0 - self.launches / last.launches)
        effect = abs(self.log_ratio)
        return effect + luck > max(half, _LEAST_EFFECT) or max(effect - luck, 0.0) + half <= _EQUAL_MARGIN


def launch_pair(arm: Float64, baseline: Float64, *, seed: int = 0) -> LaunchPair:
    """Compare two arms that were visited in the same blocks of one launch.

    Args:
        arm, baseline: (blocks,), one statistic per visit, seconds. Blocks with a time of 0 are left out.
        seed: Seed of the bootstrap.

    Raises:
        CaseError: If no block remains.

    Source: METHOD B.4 (median over blocks; standard error by circular-block bootstrap).
    """
    seen = (arm > 0.0) & (baseline > 0.0)
    if not seen.any():
        raise CaseError(
            "The clock measured a time of 0 for every visit of the two arms.",
            hint="Make the case larger, or visits longer.",
        )
    logs = np.log(arm[seen]) - np.log(baseline[seen])
    third = max(logs.size // 3, 1)
    return LaunchPair(
        log_ratio=float(np.median(logs)),
        standard_error=median_standard_error(logs, seed=seed),
        blocks=int(logs.size),
        drift=float(np.median(logs[-third:]) - np.median(logs[:third])),
    )


def random_effects(pairs: Sequence[LaunchPair], calibration: Calibration) -> RatioEstimate:
    """Combine launches; the calibration counts as `calibration.degrees` additional launches.

    A single launch is enough: its error is then that of the calibration and its own.

    Args:
        pairs: At least one launch.
        calibration: Variation between processes on this class of machine.

    Raises:
        CaseError: If there is no launch.

    Source: METHOD B.4: s2 = (nu0 (s0^2 + mean se_k^2) + (K - 1) var(d_k)) / (nu0 + K - 1).
    """
    if not pairs:
        raise CaseError("There is no launch to compare.", hint="Run at least one launch of both arms.")
    ratios = np.array([pair.log_ratio for pair in pairs])
    count = ratios.size
    within = float(np.mean([pair.standard_error**2 for pair in pairs]))
    scatter = float(np.sum((ratios - ratios.mean()) ** 2))
    degrees = calibration.degrees + count - 1
    variance = (calibration.degrees * (calibration.between_sd**2 + within) + scatter) / degrees
    return RatioEstimate(
        log_ratio=float(ratios.mean()),
        standard_error=math.sqrt(variance / count),
        degrees=degrees,
        launches=count,
    )


def moved(pairs: Sequence[LaunchPair]) -> bool:
    """Whether the ratio drifted during the measurement: in the same direction in all launches, by more than 2 %.

    A warm-up is too short to detect a slow change, the measurement is not. False for fewer than three launches.

    Source: t test of the launches' drifts against 0 at 1 %; docs/decisions/0006.
    """
    if len(pairs) < _LEAST_DRIFTS:
        return False
    drifts = np.array([pair.drift for pair in pairs])
    half = _quantile(_DRIFT_ALPHA, len(pairs) - 1) * float(np.std(drifts, ddof=1)) / math.sqrt(len(pairs))
    return abs(float(drifts.mean())) > max(half, _EQUAL_MARGIN)


def judge_table(
    estimates: Mapping[str, RatioEstimate], clone: RatioEstimate | None, *, alpha: float
) -> dict[str, RatioVerdict]:
    """Decide the verdict of every arm of one table.

    FASTER and SLOWER hold for all arms together (Holm); EQUAL holds for each arm alone.

    Args:
        estimates: Estimates by arm, without the baseline.
        clone: Estimate of a second process of the baseline, or None if there is none. If its interval excludes 1,
            every verdict is NOISY.
        alpha: Alpha of this look.

    Source: METHOD B.4; Holm, Scand. J. Statist. 6, 1979.
    """
    if clone is not None and clone.p_value() < alpha:
        return dict.fromkeys(estimates, RatioVerdict.NOISY)
    adjusted = holm([estimate.p_value() for estimate in estimates.values()])
    return {
        name: _verdict(estimate, differs=p_value < alpha, alpha=alpha)
        for (name, estimate), p_value in zip(estimates.items(), adjusted, strict=True)
    }


def can_stop(
    estimates: Mapping[str, RatioEstimate],
    words: Mapping[str, RatioVerdict],
    *,
    alpha: float,
    margin: float | None = None,
    last: StoppingLook | None = None,
) -> bool:
    """Whether the result is final, or more launches would not change it.

    Args:
        estimates, words: Estimates and verdicts of `judge_table`, by arm.
        alpha: Alpha of this look.
        margin: Limit of a gate on slow-down, as a share: the result is open as long as an interval contains
            1 + margin. None = no gate.
        last: The last look, if this is an earlier one: without a gate, launches end where it would decide none of the
            open verdicts. That can only replace a verdict by INCONCLUSIVE.

    NOISY is open too: with more launches the observed scatter outweighs a calibration that is too small.
    """
    if RatioVerdict.NOISY in words.values():
        return False
    open_arms = [estimates[name] for name, word in words.items() if word is RatioVerdict.INCONCLUSIVE]
    if margin is None:
        return not any(last is None or estimate.may_decide(last) for estimate in open_arms)
    if open_arms:
        return False
    intervals = [estimate.interval(alpha) for estimate in estimates.values()]
    return not any(low <= 1.0 + margin <= high for low, high in intervals)


def _verdict(estimate: RatioEstimate, *, differs: bool, alpha: float) -> RatioVerdict:
    if differs and abs(estimate.log_ratio) > _LEAST_EFFECT:
        return RatioVerdict.SLOWER if estimate.log_ratio > 0.0 else RatioVerdict.FASTER
    is_within = abs(estimate.log_ratio) + estimate.half_width(alpha) <= _EQUAL_MARGIN
    return RatioVerdict.EQUAL if is_within else RatioVerdict.INCONCLUSIVE


def _quantile(alpha: float, degrees: float) -> float:
    return float(_quantiles(alpha, np.array(degrees)))


def _quantiles(alpha: float, degrees: Float64) -> Float64:
    """Two-sided t quantile of 1 - alpha."""
    from scipy.special import stdtrit

    quantiles: Float64 = stdtrit(degrees, 1.0 - alpha / 2.0)
    return quantiles
