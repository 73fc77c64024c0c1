"""What a value of a mask's expression is, as far as positions go, and what becomes of it; knows no graph."""

import math
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

__all__ = ["PATTERN", "UNKNOWN", "Is", "Path", "added_up", "either", "largest", "moved", "picked"]

# Numbers from here on stand for infinity or the lowest of a type, not for a length.
_NO_LENGTH = 2.0**31
# Positions in one comparison: a query's and a key's.
_MOST_POSITIONS = 2


class Is(Enum):
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
class Path:
    """What is known of a value.

    Args:
        kind: What it is.
        positions: Positions in the sum.
        number: The greatest that the literals in it may add up to.
        threshold: A position at which the value's own operator may change its ways, beyond those of its inputs.
        is_constant: It is a constant itself, so that its inputs say nothing more.
    """

    kind: Is
    positions: int = 0
    number: float = 0.0
    threshold: float = 0.0
    is_constant: bool = False


UNKNOWN = Path(kind=Is.UNKNOWN)
PATTERN = Path(kind=Is.PATTERN)


def picked(data: Path, index: Path) -> Path:
    """Entries by one position: a position of what is picked from is moved, a pattern has the numbers of both."""
    if index.kind not in (Is.POSITION, Is.INDICES) or index.positions > 1:
        return UNKNOWN
    match data.kind:
        case Is.POSITION if data.positions == 1:
            return Path(kind=Is.POSITION, positions=1, number=data.number + index.number)
        case Is.LITERAL | Is.PATTERN:
            return Path(kind=data.kind, number=data.number, threshold=index.number)
        case _:
            return UNKNOWN


def moved(path: Path, by: float) -> Path:
    """The same entries at places that a number moves."""
    if path.kind is Is.UNKNOWN:
        return PATTERN
    number = path.number if path.kind is Is.LITERAL else path.number + by
    return Path(kind=path.kind, positions=path.positions, number=number, threshold=by)


def either(paths: list[Path]) -> Path:
    """One of several values at each place."""
    kinds = {path.kind for path in paths}
    if Is.POSITION not in kinds:
        return PATTERN
    if kinds - {Is.POSITION, Is.LITERAL}:
        return UNKNOWN
    positions = max(path.positions for path in paths)
    return Path(kind=Is.POSITION, positions=positions, number=sum(path.number for path in paths))


def added_up(paths: list[Path]) -> Path:
    """A sum or difference; too many positions in it are unknown."""
    kinds = {path.kind for path in paths}
    if Is.POSITION not in kinds:
        return PATTERN
    total = sum(path.number for path in paths)
    count = sum(path.positions for path in paths)
    if kinds - {Is.POSITION, Is.LITERAL} or count > _MOST_POSITIONS:
        return UNKNOWN
    return Path(kind=Is.POSITION, positions=count, number=total)


def largest(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> float:
    """Of the entries by amount; infinity where one is no length: fractional, infinite or huge."""
    if array.dtype == np.bool_ or not array.size:
        return 0.0
    if array.dtype.kind not in "iufV":
        return math.inf
    numbers = np.abs(array.astype(np.float64))
    is_length = np.isfinite(numbers) & (numbers < _NO_LENGTH) & (numbers == np.floor(numbers))
    return float(numbers.max()) if bool(is_length.all()) else math.inf
