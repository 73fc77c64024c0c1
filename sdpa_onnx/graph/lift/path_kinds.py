"""Abstract values of a mask expression: how a value depends on positions, and how operators combine them.

Knows no graph.
"""

import math
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

__all__ = ["PATTERN", "UNKNOWN", "PathFacts", "PathKind", "added_up", "either", "largest", "moved", "picked"]

# Numbers from here on mean infinity or the lowest number of a type, not a length.
_NO_LENGTH = 2.0**31
# Positions in one comparison: that of a query and that of a key.
_MOST_POSITIONS = 2


class PathKind(Enum):
    """How a value depends on positions.

    LITERAL: a constant, or an entry gathered from constants.
    POSITION: a sum of positions and literals.
    SAMPLE: a position along a batch axis.
    PAST: the number of cached keys plus literals; added to a position, it stays a position.
    INDICES: literals, positions and samples concatenated to index tuples.
    PATTERN: the result of comparisons, or a selection among literals by them.
    UNKNOWN: anything else.
    """

    LITERAL = auto()
    POSITION = auto()
    SAMPLE = auto()
    PAST = auto()
    INDICES = auto()
    PATTERN = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """The abstract value.

    Args:
        kind: How it depends on positions.
        positions: Number of positions in the sum.
        number: Upper bound on the absolute sum of its literals.
        threshold: Position at which the value's own operator may change its result, in addition to those of its inputs.
        is_constant: The value is a constant, so its inputs need not be followed.
        has_past: The number of cached keys is in the sum, or was in a comparison of two positions.
    """

    kind: PathKind
    positions: int = 0
    number: float = 0.0
    threshold: float = 0.0
    is_constant: bool = False
    has_past: bool = False


UNKNOWN = PathFacts(kind=PathKind.UNKNOWN)
PATTERN = PathFacts(kind=PathKind.PATTERN)


def picked(data: PathFacts, index: PathFacts) -> PathFacts:
    """Gather by an index with at most one position: shifts a position, and adds a threshold to a literal or pattern."""
    if index.kind not in (PathKind.POSITION, PathKind.INDICES) or index.positions > 1 or index.has_past:
        return UNKNOWN
    match data.kind:
        case PathKind.POSITION if data.positions == 1 and not data.has_past:
            return PathFacts(kind=PathKind.POSITION, positions=1, number=data.number + index.number)
        case PathKind.LITERAL | PathKind.PATTERN:
            return PathFacts(kind=data.kind, number=data.number, threshold=index.number)
        case _:
            return UNKNOWN


def moved(path: PathFacts, by: float) -> PathFacts:
    """The same entries, shifted by a number of positions."""
    if path.kind is PathKind.UNKNOWN:
        return PATTERN
    number = path.number if path.kind is PathKind.LITERAL else path.number + by
    return PathFacts(kind=path.kind, positions=path.positions, number=number, threshold=by, has_past=path.has_past)


def either(paths: list[PathFacts]) -> PathFacts:
    """A selection of one of several values at each position."""
    kinds = {path.kind for path in paths}
    if PathKind.POSITION not in kinds:
        return PATTERN
    if kinds - {PathKind.POSITION, PathKind.LITERAL} or any(path.has_past for path in paths):
        return UNKNOWN
    positions = max(path.positions for path in paths)
    return PathFacts(kind=PathKind.POSITION, positions=positions, number=sum(path.number for path in paths))


def added_up(paths: list[PathFacts]) -> PathFacts:
    """A sum or difference; unknown if it has too many positions."""
    kinds = {path.kind for path in paths}
    total = sum(path.number for path in paths)
    if PathKind.POSITION not in kinds:
        if PathKind.PAST not in kinds:
            return PATTERN
        return UNKNOWN if kinds - {PathKind.PAST, PathKind.LITERAL} else PathFacts(kind=PathKind.PAST, number=total)
    count = sum(path.positions for path in paths)
    if kinds - {PathKind.POSITION, PathKind.LITERAL, PathKind.PAST} or count > _MOST_POSITIONS:
        return UNKNOWN
    has_past = PathKind.PAST in kinds or any(path.has_past for path in paths)
    return PathFacts(kind=PathKind.POSITION, positions=count, number=total, has_past=has_past)


def largest(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> float:
    """The largest absolute entry; infinity if any entry is not a length: fractional, infinite or huge."""
    if array.dtype == np.bool_ or not array.size:
        return 0.0
    if array.dtype.kind not in "iufV":
        return math.inf
    numbers = np.abs(array.astype(np.float64))
    is_length = np.isfinite(numbers) & (numbers < _NO_LENGTH) & (numbers == np.floor(numbers))
    return float(numbers.max()) if bool(is_length.all()) else math.inf
