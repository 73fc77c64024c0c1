"""Whether one arm is slower than another, from several launches of both: estimate, interval, word.

Takes one number a visit, arm and launch; measures nothing. Two processes that run the same model differ by some tenths
of a percent for as long as they live, so the launches are the sample, not the calls.
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

# A change that is smaller counts as none, however certain: one extra call of 0.5 % moved times by 2 %.
# Log ratios, so that swapping the arms turns FASTER into SLOWER and nothing else. Source: METHOD B.3, B.4.
_LEAST_EFFECT = math.log(1.01)
# Margin of equivalence, log ratio. Source: METHOD B.4 (delta = 2 %).
_EQUAL_MARGIN = math.log(1.02)
# Standard normal quantile of 80 % power. Source: METHOD B.4 (MDE = half * (1 + 0.84 / t)).
_POWER_QUANTILE = 0.84
# Launches below which a drift cannot be told from noise, and the share of false alarms. Source: docs/decisions/0006.
_LEAST_DRIFTS, _DRIFT_ALPHA = 3, 0.01
# `launches_needed` looks no further: the machine, not the number of launches, is then the trouble.
_MOST_LAUNCHES = 1000
# Ends of an interval stay numbers: e to this power is near the largest that a double holds.
_MOST_LOG = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How much two processes of the same model differ on a class of machine.

    Args:
        between_sd: Standard deviation of the log ratio of one pair of processes, sampling error taken out.
        degrees: Degrees of freedom that this figure is worth on the machine at hand.
        machine: Class of machine it was measured on; "" for the usual figure.

    Source: METHOD B.4 (s0 = 0.57 %, nu0 = 8 where it was measured). The figure of another machine is worth half of
    that: docs/decisions/0006.
    """

    between_sd: float = 0.0057
    degrees: float = 4.0
    machine: str = ""

    @property
    def figures(self) -> dict[str, float]:
        """As a run keeps them."""
        return {"between_sd": self.between_sd, "degrees": self.degrees}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingLook:
    """One moment at which the test may stop: after so many launches, at this share of alpha."""

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
        standard_error: Of that median, by bootstrap.
        blocks: That took part.
        drift: Median log ratio of the last third of the blocks less that of the first.
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
        standard_error: Of the mean, differences between processes included.
        degrees: Of the t distribution that it follows.
        launches: How many.
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
        """Ends of the two-sided 1 - alpha interval of the ratio."""
        half = self.half_width(alpha)
        ends = (self.log_ratio - half, self.log_ratio + half)
        low, high = (math.exp(min(max(end, -_MOST_LOG), _MOST_LOG)) for end in ends)
        return low, high

    def half_width(self, alpha: float) -> float:
        """Half of the two-sided 1 - alpha interval of the log ratio."""
        return _quantile(alpha, self.degrees) * self.standard_error

    def p_value(self) -> float:
        """Two-sided, of a ratio of 1."""
        from scipy.special import stdtr

        if self.standard_error == 0.0:
            return float(self.log_ratio == 0.0)
        return float(2.0 * stdtr(self.degrees, -abs(self.log_ratio) / self.standard_error))

    def detectable(self, alpha: float) -> float:
        """Smallest relative slow-down found with 80 % power.

        Source: METHOD B.4: exp(half * (1 + 0.84 / t)) - 1, and half = t * standard error.
        """
        return math.expm1((_quantile(alpha, self.degrees) + _POWER_QUANTILE) * self.standard_error)

    def launches_needed(self, alpha: float) -> int:
        """About how many launches more would give a word, at the effect seen; 0 if there is one.

        Supposes that the launches to come differ as those seen do; at most 1000.
        """
        launches = np.arange(self.launches, _MOST_LAUNCHES + self.launches, dtype=np.float64)
        degrees = self.degrees + (launches - self.launches)
        half = _quantiles(alpha, degrees) * self.standard_error * np.sqrt(self.launches / launches)
        effect = abs(self.log_ratio)
        decides = effect + half <= _EQUAL_MARGIN
        if effect > _LEAST_EFFECT:
            decides |= half < effect
        return int(np.argmax(decides)) if decides.any() else _MOST_LAUNCHES


def launch_pair(arm: Float64, baseline: Float64, *, seed: int = 0) -> LaunchPair:
    """Compare two arms that were visited in the same blocks of one launch.

    Args:
        arm, baseline: (blocks,), one statistic a visit, seconds. A block where the clock saw no time is left out.
        seed: Of the bootstrap.

    Raises:
        CaseError: If no block is left.

    Source: METHOD B.4 (median over blocks; standard error by circular-block bootstrap).
    """
    seen = (arm > 0.0) & (baseline > 0.0)
    if not seen.any():
        raise CaseError(
            "No visit of the two arms took time that the clock can see.", hint="Make the case larger, or visits longer."
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
    """Join launches; what is known of the machine counts as `calibration.degrees` launches more.

    One launch works too: its error is then the calibration's, and its own.

    Args:
        pairs: At least one.
        calibration: Difference between processes on this class of machine.

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
    """Whether the ratio was still changing while it was measured: in all launches the same way, and by more than 2 %.

    A warm-up is too short to see a slow change, the measurement is not. False for fewer than three launches.

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
    """The word for every arm of one table.

    FASTER and SLOWER hold for all arms together (Holm); EQUAL is a claim of its own for each arm.

    Args:
        estimates: By arm, the baseline left out.
        clone: A second process of the baseline, or None where there is none. If its interval excludes 1, every word
            is NOISY.
        alpha: Of this look.

    Source: METHOD B.4; Holm, Scand. J. Statist. 6, 1979.
    """
    if clone is not None and clone.p_value() < alpha:
        return dict.fromkeys(estimates, RatioVerdict.NOISY)
    adjusted = holm([estimate.p_value() for estimate in estimates.values()])
    return {
        name: _word(estimate, differs=p_value < alpha, alpha=alpha)
        for (name, estimate), p_value in zip(estimates.items(), adjusted, strict=True)
    }


def can_stop(
    estimates: Mapping[str, RatioEstimate],
    words: Mapping[str, RatioVerdict],
    *,
    alpha: float,
    margin: float | None = None,
) -> bool:
    """Whether more launches would change nothing that was asked.

    Args:
        estimates, words: Of `judge_table`, by arm.
        alpha: Of this look.
        margin: Where a gate asks whether a slow-down is above this share: as long as an interval holds 1 + margin, the
            question is open.

    NOISY is open too: with more launches the scatter seen outweighs a calibration that was too small.
    """
    if any(word in (RatioVerdict.INCONCLUSIVE, RatioVerdict.NOISY) for word in words.values()):
        return False
    if margin is None:
        return True
    intervals = [estimate.interval(alpha) for estimate in estimates.values()]
    return not any(low <= 1.0 + margin <= high for low, high in intervals)


def _word(estimate: RatioEstimate, *, differs: bool, alpha: float) -> RatioVerdict:
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
