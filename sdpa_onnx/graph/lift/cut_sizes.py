"""How many entries Slice and Range have along an axis, where their limits are axis sizes. Reads no graph."""

from sdpa_onnx.graph.lift.sizes import SizeEntry, SymbolicSize, is_length

__all__ = ["counted", "sliced"]

# The least end that exporters write for "to the last entry".
_TO_THE_LAST = 2**31 - 1


def sliced(size: SizeEntry, start: SizeEntry, end: SizeEntry, step: SizeEntry = 1) -> SizeEntry | None:
    """Entries of an axis that a slice keeps; None if they are unknown.

    Args:
        size: Of the axis that is cut.
        start, end, step: As in the operator.
    """
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    if isinstance(size, int) and isinstance(end, int):
        return len(range(*slice(start, end, step).indices(size)))
    if isinstance(end, int) and (end >= _TO_THE_LAST if step == 1 else (start, end, step) == (-1, -_TO_THE_LAST, -1)):
        return size if start == 0 or step == -1 else None
    if start != 0 or step != 1 or not is_length(end):
        return None
    return size if size == end else SymbolicSize(("cut", end, size))


def counted(start: SizeEntry, limit: SizeEntry, delta: SizeEntry) -> SizeEntry | None:
    """Entries of a Range; None if they are unknown."""
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int) and delta:
        return len(range(start, limit, delta))
    if delta != 1 or not isinstance(limit, SymbolicSize):
        return None
    if start == 0:
        return limit if is_length(limit) else None
    if limit.terms[0] != "+" or start not in limit.terms[1:]:
        return None
    one, other = limit.terms[1:]
    rest = other if one == start else one
    return rest if isinstance(rest, int | SymbolicSize) and is_length(rest) else None
