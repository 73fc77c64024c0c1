"""Which form wins, from paired ratios: ties go to the simpler one, and a change with length must pay.

Pure arithmetic on figures; measures and writes nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

__all__ = ["TIE", "LengthSplit", "RacedArm", "best_overall", "split_by_length", "winner"]

# A simpler form that may be this much slower than the fastest is as good: below what a paired comparison
# on a shared machine can tell, and what a reader would call the same.
TIE = 1.02
# A second form in one file must gain more than this somewhere: it doubles the nodes.
_WORTH = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RacedArm:
    """One arm at one length.

    Args:
        arm: Its name; arms are given from the simplest to the least simple.
        ratio: Seconds over those of the fastest.
        ratio_low: Low end of its interval.
    """

    arm: str
    ratio: float
    ratio_low: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSplit:
    """Two arms, one up to a length and the other beyond it.

    Args:
        short: Arm for queries up to `at`.
        long: Arm for more queries.
        at: Queries.
        gain: Greatest gain at any length over the best single arm.
    """

    short: str
    long: str
    at: int
    gain: float


def winner(raced: Sequence[RacedArm]) -> RacedArm:
    """The simplest arm that may be as fast as the fastest.

    Args:
        raced: At least one, from the simplest to the least simple.

    Example:
        >>> slow = RacedArm(arm="attention", ratio=1.5, ratio_low=1.4)
        >>> fast = RacedArm(arm="blocked", ratio=1, ratio_low=1)
        >>> winner([slow, fast]).arm, winner([RacedArm(arm="attention", ratio=1.03, ratio_low=1.01), fast]).arm
        ('blocked', 'attention')
    """
    best = min(one.ratio for one in raced)
    return next(one for one in raced if one.ratio_low <= TIE * best or one.ratio == best)


def best_overall(races: Mapping[int, Sequence[RacedArm]]) -> str | None:
    """The arm with the least geometric mean of its ratios; within a tie the simplest; None if none ran everywhere.

    Args:
        races: By length; arms that ran at every length count.
    """
    means = {arm: _mean(ratios) for arm, ratios in _ratios(races).items()}
    best = min(means.values(), default=math.inf)
    return next((arm for arm, mean in means.items() if mean <= TIE * best), None)


def split_by_length(races: Mapping[int, Sequence[RacedArm]]) -> LengthSplit | None:
    """Two arms that together gain more than 5 % at some length over the best single one, or None.

    Args:
        races: By query length; each from the simplest arm to the least simple.
    """
    ratios, lengths = _ratios(races), sorted(races)
    single = best_overall(races)
    if single is None:
        return None
    best: tuple[float, LengthSplit] | None = None
    for position in range(1, len(lengths)):
        # Half-way between two measured lengths, where costs grow by powers.
        at = round(math.sqrt(max(lengths[position - 1], 1) * lengths[position]))
        for short, long in product(ratios, ratios):
            together = [*ratios[short][:position], *ratios[long][position:]]
            gain = max(alone / pair for alone, pair in zip(ratios[single], together, strict=True))
            if short != long and (best is None or _mean(together) < best[0]):
                best = (_mean(together), LengthSplit(short=short, long=long, at=at, gain=gain))
    if best is None or best[1].gain <= _WORTH or best[0] >= _mean(ratios[single]):
        return None
    return best[1]


def _ratios(races: Mapping[int, Sequence[RacedArm]]) -> dict[str, list[float]]:
    """Arm -> its ratios by growing length, of arms that ran at every one."""
    lengths = sorted(races)
    if not lengths:
        return {}
    by_length = [{one.arm: one.ratio for one in races[length]} for length in lengths]
    arms = [one.arm for one in races[lengths[0]]]
    return {arm: [race[arm] for race in by_length] for arm in arms if all(arm in race for race in by_length)}


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
