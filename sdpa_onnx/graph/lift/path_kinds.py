"""What a value of a mask's expression is, as far as positions go, and what becomes of it; knows no graph."""

import math
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

__all__ = ["PATTERN", "UNKNOWN", "PathFacts", "PathKind", "added_up", "either", "largest", "moved", "picked"]

# Numbers from here on stand for infinity or the lowest of a type, not for a length.
_NO_LENGTH = 2.0**31
# Positions in one comparison: a query's and a key's.
_MOST_POSITIONS = 2


class PathKind(Enum):
    """What a value is.

    LITERAL: constant, or picked from constants.
    POSITION: a sum of positions and literals.
    SAMPLE: a position along a batch.
    INDICES: literals, positions and samples beside each other, to pick entries by.
    PATTERN: what comparisons chose among literals.
    UNKNOWN: anything else.
    """

    LITERAL = auto()
    POSITION = auto()
    SAMPLE = auto()
    INDICES = auto()
    PATTERN = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """What is known of a value.

    Args:
        kind: What it is.
        positions: Positions in the sum.
        number: The greatest that the literals in it may add up to.
        threshold: A position at which the value's own operator may change its ways, beyond those of its inputs.
        is_constant: It is a constant itself, so that its inputs say nothing more.
    """

    kind: PathKind
    positions: int = 0
    number: float = 0.0
    threshold: float = 0.0
    is_constant: bool = False


UNKNOWN = PathFacts(kind=PathKind.UNKNOWN)
PATTERN = PathFacts(kind=PathKind.PATTERN)


def picked(data: PathFacts, index: PathFacts) -> PathFacts:
    """Entries by one position: a position of what is picked from is moved, a pattern has the numbers of both."""
    if index.kind not in (PathKind.POSITION, PathKind.INDICES) or index.positions > 1:
        return UNKNOWN
    match data.kind:
        case PathKind.POSITION if data.positions == 1:
            return PathFacts(kind=PathKind.POSITION, positions=1, number=data.number + index.number)
        case PathKind.LITERAL | PathKind.PATTERN:
            return PathFacts(kind=data.kind, number=data.number, threshold=index.number)
        case _:
            return UNKNOWN


def moved(path: PathFacts, by: float) -> PathFacts:
    """The same entries at places that a number moves."""
    if path.kind is PathKind.UNKNOWN:
        return PATTERN
    number = path.number if path.kind is PathKind.LITERAL else path.number + by
    return PathFacts(kind=path.kind, positions=path.positions, number=number, threshold=by)


def either(paths: list[PathFacts]) -> PathFacts:
    """One of several values at each place."""
    kinds = {path.kind for path in paths}
    if PathKind.POSITION not in kinds:
        return PATTERN
    if kinds - {PathKind.POSITION, PathKind.LITERAL}:
        return UNKNOWN
    positions = max(path.positions for path in paths)
    return PathFacts(kind=PathKind.POSITION, positions=positions, number=sum(path.number for path in paths))


def added_up(paths: list[PathFacts]) -> PathFacts:
    """A sum or difference; too many positions in it are unknown."""
    kinds = {path.kind for path in paths}
    if PathKind.POSITION not in kinds:
        return PATTERN
    total = sum(path.number for path in paths)
    count = sum(path.positions for path in paths)
    if kinds - {PathKind.POSITION, PathKind.LITERAL} or count > _MOST_POSITIONS:
        return UNKNOWN
    return PathFacts(kind=PathKind.POSITION, positions=count, number=total)


def largest(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> float:
    """Of the entries by amount; infinity where one is no length: fractional, infinite or huge."""
    if array.dtype == np.bool_ or not array.size:
        return 0.0
    if array.dtype.kind not in "iufV":
        return math.inf
    numbers = np.abs(array.astype(np.float64))
    is_length = np.isfinite(numbers) & (numbers < _NO_LENGTH) & (numbers == np.floor(numbers))
    return float(numbers.max()) if bool(is_length.all()) else math.inf
