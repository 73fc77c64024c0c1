"""Axes with names of their own that must be equally long, found by trying.

The lengths of keys and values are such. What is tried, and how, is the caller's.
"""

import itertools
from collections.abc import Callable, Collection, Mapping

__all__ = ["find_links"]

Sizes = dict[str, int]

# Sizes tried are small, since a module may bound its lengths; no two groups get the same.
_SMALLEST_BATCH, _SMALLEST_LENGTH = 2, 3


def find_links(
    axes: Mapping[str, int | None], *, batches: Collection[str], runs: Callable[[Sizes], bool]
) -> dict[str, str]:
    """Find axes that must have the size of another one.

    Args:
        axes: Every axis, with its size in a sample that works, or None where none is known.
        batches: Those that count samples; the others are lengths.
        runs: Whether it runs at these sizes.

    Returns:
        The other axis by each axis that is not free. Nothing where every axis is free, or where
        equal sizes do not help.

    Example:
        >>> keys_as_values = lambda sizes: sizes["k"] == sizes["v"]
        >>> find_links({"q": 5, "k": 5, "v": 5}, batches=(), runs=keys_as_values)
        {'v': 'k'}
    """

    def works(heads: Mapping[str, str]) -> bool:
        return runs(_sizes(heads, batches))

    if len(axes) < 2 or works({name: name for name in axes}):
        return {}
    first: dict[tuple[bool, int | None], str] = {}
    together = {name: first.setdefault((name in batches, size), name) for name, size in axes.items()}
    if not works(together):
        return {}
    # What works apart from the others is free of them: one axis, or two that belong together (key and value lengths
    # of a cache beside those of what is new).
    for free in (*((name,) for name in axes), *itertools.combinations(axes, 2)):
        group = {together[name] for name in free}
        rest = [name for name in axes if together[name] in group and name not in free]
        if len(group) == 1 and rest:
            split = {**together, **dict.fromkeys(free, free[0]), **dict.fromkeys(rest, rest[0])}
            together = split if works(split) else together
    return {name: head for name, head in together.items() if name != head}


def _sizes(heads: Mapping[str, str], batches: Collection[str]) -> Sizes:
    chosen: dict[str, int] = {}
    for name, head in heads.items():
        smallest = _SMALLEST_BATCH if name in batches else _SMALLEST_LENGTH
        taken = sum((other in batches) == (name in batches) for other in chosen)
        chosen.setdefault(head, smallest + taken)
    return {name: chosen[head] for name, head in heads.items()}
