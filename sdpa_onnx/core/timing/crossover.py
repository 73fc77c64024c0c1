"""The lengths at which one arm overtakes another, from its ratios at several lengths.

Claims a change only between two lengths at which the difference is proven, with opposite signs. Measures nothing and
names no arms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Crossover", "LengthRatio", "crossovers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRatio:
    """The ratio of two arms at one length.

    Args:
        length: In tokens, at least 1.
        log_ratio: Logarithm of time over time of the other arm; below 0 = faster.
        standard_error: Of the log ratio, above 0.
        degrees: Of the t distribution that it follows; infinity for a normal one.
    """

    length: int
    log_ratio: float
    standard_error: float
    degrees: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """A change of the faster arm.

    Args:
        length: Where the two are about equally fast, tokens.
        low, high: The last length before it and the first behind it at which the difference is proven.
        wins_above: Whether the arm is the faster one beyond it.
    """

    length: float
    low: int
    high: int
    wins_above: bool


def crossovers(points: Sequence[LengthRatio], *, alpha: float = 0.01) -> tuple[Crossover, ...]:
    """Find where the sign of a proven difference changes, in order of length.

    Args:
        points: One a length, in any order.
        alpha: Chance that any of the signs is wrong; shared out over the points (Bonferroni).

    Returns:
        A crossover for every two neighbours, among the lengths with a proven sign, whose signs differ; none where no
        change is proven. Its length is the zero of the straight line through the two in log ratio over log length.

    Source:
        Bolzano: what is continuous and has two signs is zero in between; between `low` and `high` it crosses at least
        once. The line (regula falsi) is exact where both times are powers of the length, which attention's are in
        the limits of short (weights, linear) and long (scores, quadratic) sequences.
    """
    alone = alpha / max(len(points), 1)
    proven = sorted((point for point in points if _is_proven(point, alone)), key=lambda point: point.length)
    return tuple(_between(left, right) for left, right in pairwise(proven) if left.log_ratio * right.log_ratio < 0)


def _is_proven(point: LengthRatio, alpha: float) -> bool:
    from scipy import special  # late: it is slow to import

    level = 1.0 - alpha / 2.0
    quantile = special.ndtri(level) if math.isinf(point.degrees) else special.stdtrit(point.degrees, level)
    return bool(abs(point.log_ratio) > quantile * point.standard_error)


def _between(left: LengthRatio, right: LengthRatio) -> Crossover:
    share = left.log_ratio / (left.log_ratio - right.log_ratio)
    position = math.log(left.length) + share * (math.log(right.length) - math.log(left.length))
    return Crossover(length=math.exp(position), low=left.length, high=right.length, wins_above=right.log_ratio < 0)
