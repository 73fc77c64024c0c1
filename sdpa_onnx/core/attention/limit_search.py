"""Finds the sizes that a module or a file runs at, by trial, from one size at which it runs.

Runs nothing itself; the caller supplies the trial.
"""

from collections.abc import Callable, Mapping, Sequence

from sdpa_onnx.core.attention.axis_limits import AxisLimit

__all__ = ["search_limits"]

Runs = Callable[[Mapping[str, int]], bool]

# Steps of sizes that occur: windows, patches, blocks.
_STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 20, 24, 28, 32, 48, 49, 64, 96, 100, 128)


def search_limits(
    axes: Sequence[str], start: Mapping[str, int], *, runs: Runs, longest: int, source: str
) -> tuple[AxisLimit, ...]:
    """Find the range and the step of each axis, and the sum of two axes if that is what is limited.

    Args:
        axes: The axes to search, one after the other.
        start: Sizes at which it runs.
        runs: Whether it runs at these sizes.
        longest: No longer size is tried.
        source: Of the limits.

    Returns:
        The limits found; none of an axis that runs at no other size, which is fixed.

    Example:
        >>> frames = lambda sizes: sizes["m"] % 16 == 2 and sizes["m"] <= 98
        >>> [str(limit) for limit in search_limits(["m"], {"m": 50}, runs=frames, longest=1024, source="")]
        ['m <= 98, m = 16*n + 2']
    """
    found = [limit for axis in axes if (limit := _of_axis(axis, start, runs, longest, source)) is not None]
    bounded = [limit for limit in found if limit.largest is not None and limit.step == 1]
    for position, one in enumerate(bounded):
        for other in bounded[position + 1 :]:
            joint = _joint(one, other, start, runs)
            if joint is not None:
                return (*(limit for limit in found if limit not in (one, other)), joint)
    return tuple(found)


def _of_axis(axis: str, start: Mapping[str, int], runs: Runs, longest: int, source: str) -> AxisLimit | None:
    own = start[axis]

    def at(size: int) -> bool:
        return size == own or (0 < size <= longest and runs({**start, axis: size}))

    step = next((step for step in _STEPS if at(own + step) or at(own - step)), None)
    if step is None:
        return None
    smallest = _last(own, -step, own // step, at)
    largest = _last(own, step, max(0, (longest - own) // step), at)
    # A size of 0 is not tried, so that the first step above it is no limit.
    is_limited_below, is_limited_above = smallest > step, largest + step <= longest
    if step == 1 and not is_limited_below and not is_limited_above:
        return None
    return AxisLimit(
        size=axis,
        smallest=smallest if is_limited_below else 0,
        largest=largest if is_limited_above else None,
        step=step,
        offset=own % step,
        source=source,
    )


def _last(own: int, step: int, count: int, at: Callable[[int], bool]) -> int:
    """The last size in one direction that runs, if all before it do; by halving."""
    runs, fails = 0, count + 1
    if count and at(own + step * count):
        return own + step * count
    while fails - runs > 1:
        middle = (runs + fails) // 2
        runs, fails = (middle, fails) if at(own + step * middle) else (runs, middle)
    return own + step * runs


def _joint(one: AxisLimit, other: AxisLimit, start: Mapping[str, int], runs: Runs) -> AxisLimit | None:
    """The limit of the sum of two axes, if it explains the largest size of both."""
    longest = (one.largest or 0) + start[other.size]
    if longest != (other.largest or 0) + start[one.size]:
        return None
    moved = {**start, one.size: 1, other.size: longest - 1}
    if not runs(moved) or runs({**moved, one.size: 2}):
        return None
    return AxisLimit(size=f"{one.size} + {other.size}", largest=longest, source=one.source)
