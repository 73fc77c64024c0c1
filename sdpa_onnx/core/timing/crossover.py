"""Finds the sequence lengths at which one arm becomes faster than another, from their ratios at several lengths.

Reports a crossover only between two lengths at which the difference is proven, with opposite signs. Measures nothing
and knows no arm names.
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
        length: Sequence length in tokens, at least 1.
        log_ratio: Logarithm of the arm's time over the other arm's time; below 0 = faster.
        standard_error: Standard error of the log ratio, above 0.
        degrees: Degrees of freedom of its t distribution; infinity for a normal distribution.
    """

    length: int
    log_ratio: float
    standard_error: float
    degrees: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """A change of the faster arm.

    Args:
        length: Length at which both are about equally fast, tokens.
        low, high: The last length below it and the first length above it at which the difference is proven.
        wins_above: Whether the arm is the faster one above it.
    """

    length: float
    low: int
    high: int
    wins_above: bool


def crossovers(points: Sequence[LengthRatio], *, alpha: float = 0.01) -> tuple[Crossover, ...]:
    """Find where the sign of a proven difference changes, in order of length.

    Args:
        points: One per length, in any order.
        alpha: Probability that any of the signs is wrong; divided by the number of points (Bonferroni).

    Returns:
        A crossover for every two neighbouring lengths with proven, different signs; empty if no
        change is proven. Its length is the zero of the straight line through the two in log ratio over log length.

    Source:
        Bolzano: a continuous function with two signs has a zero in between, so there is at least one crossover between
        `low` and `high`. The line (regula falsi) is exact if both times are powers of the length, as for attention in
        the limits of short (weights, linear) and long (scores, quadratic) sequences.
    """
    per_point = alpha / max(len(points), 1)
    proven = sorted((point for point in points if _is_proven(point, per_point)), key=lambda point: point.length)
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
