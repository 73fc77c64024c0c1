"""Chooses the fastest graph form from paired ratios; a tie goes to the simpler form.

Pure arithmetic on measured ratios; measures nothing and writes no graph.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

__all__ = ["TIE", "LengthSplit", "RacedArm", "best_overall", "fastest_simple_arm", "split_by_length"]

# A simpler form that may be this much slower than the fastest counts as equal: a paired comparison on a
# shared machine cannot resolve less, and it makes no difference to a user.
TIE = 1.02
# Two forms in one file double the nodes, so they must gain more than this at some length.
_LEAST_SPLIT_GAIN = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RacedArm:
    """One arm at one length.

    Args:
        arm: Its name; arms are ordered from the simplest to the least simple.
        ratio: Its time divided by that of the fastest arm.
        ratio_low: Lower limit of its confidence interval.
    """

    arm: str
    ratio: float
    ratio_low: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSplit:
    """Two arms: one for query lengths up to a limit, the other for longer ones.

    Args:
        short: Arm for query lengths up to `at`.
        long: Arm for longer query lengths.
        at: Query length.
        gain: Largest speed-up at any length over the best single arm.
    """

    short: str
    long: str
    at: int
    gain: float


def fastest_simple_arm(raced: Sequence[RacedArm]) -> RacedArm:
    """Return the simplest arm whose interval does not exclude a tie with the fastest.

    Args:
        raced: At least one arm, from the simplest to the least simple.

    Example:
        >>> fast = RacedArm(arm="blocked", ratio=1, ratio_low=1)
        >>> fastest_simple_arm([RacedArm(arm="attention", ratio=1.5, ratio_low=1.4), fast]).arm
        'blocked'
        >>> fastest_simple_arm([RacedArm(arm="attention", ratio=1.03, ratio_low=1.01), fast]).arm
        'attention'
    """
    fastest = min(arm.ratio for arm in raced)
    return next(arm for arm in raced if arm.ratio_low <= TIE * fastest or arm.ratio == fastest)


def best_overall(races: Mapping[int, Sequence[RacedArm]]) -> str | None:
    """Return the arm with the smallest geometric mean ratio, or the simplest of a tie.

    Args:
        races: Arms by length. Only arms that ran at every length are considered.

    Returns:
        The name of the arm; None if no arm ran at every length.
    """
    means = {arm: _mean(ratios) for arm, ratios in _ratios(races).items()}
    best = min(means.values(), default=math.inf)
    return next((arm for arm, mean in means.items() if mean <= TIE * best), None)


def split_by_length(races: Mapping[int, Sequence[RacedArm]]) -> LengthSplit | None:
    """Find two arms that together gain more than 5 % at some length over the best single arm.

    Args:
        races: Arms by query length, each from the simplest to the least simple.

    Returns:
        The best split; None if no split gains enough.
    """
    ratios, lengths = _ratios(races), sorted(races)
    single = best_overall(races)
    if single is None:
        return None
    best: tuple[float, LengthSplit] | None = None
    for position in range(1, len(lengths)):
        # The geometric mean of two measured lengths, because cost is a power of the length.
        at = round(math.sqrt(max(lengths[position - 1], 1) * lengths[position]))
        for short, long in product(ratios, ratios):
            together = [*ratios[short][:position], *ratios[long][position:]]
            gain = max(alone / pair for alone, pair in zip(ratios[single], together, strict=True))
            if short != long and (best is None or _mean(together) < best[0]):
                best = (_mean(together), LengthSplit(short=short, long=long, at=at, gain=gain))
    if best is None or best[1].gain <= _LEAST_SPLIT_GAIN or best[0] >= _mean(ratios[single]):
        return None
    return best[1]


def _ratios(races: Mapping[int, Sequence[RacedArm]]) -> dict[str, list[float]]:
    """Arm -> its ratios by increasing length, for arms that ran at every length."""
    lengths = sorted(races)
    if not lengths:
        return {}
    by_length = [{raced.arm: raced.ratio for raced in races[length]} for length in lengths]
    arms = [raced.arm for raced in races[lengths[0]]]
    return {arm: [race[arm] for race in by_length] for arm in arms if all(arm in race for race in by_length)}


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
