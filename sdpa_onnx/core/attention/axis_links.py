"""Finds dynamic axes with different names that must have the same size, by trial.

The lengths of keys and values are an example. Runs no model itself; the caller supplies the trial.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from sdpa_onnx.core.attention.axis_limits import AxisLimit, fit_sizes

__all__ = ["find_links"]

Sizes = dict[str, int]

# The sizes to try are small, because a module may limit its lengths; each group gets a different size.
_SMALLEST_BATCH, _SMALLEST_LENGTH = 2, 3


def find_links(
    axes: Mapping[str, int | None],
    *,
    batches: Collection[str],
    runs: Callable[[Sizes], bool],
    limits: Sequence[AxisLimit] = (),
) -> dict[str, str]:
    """Find axes that must have the same size as another axis.

    Args:
        axes: Every axis with its size in a sample that works, or None if the size is unknown.
        batches: The axes that are batch sizes; the others are lengths.
        runs: Returns whether the model runs at these sizes.
        limits: The sizes that the model allows.

    Returns:
        A mapping from each dependent axis to the axis that it must equal. Empty if every axis is
        independent, or if equal sizes do not help.

    Example:
        >>> keys_as_values = lambda sizes: sizes["k"] == sizes["v"]
        >>> find_links({"q": 5, "k": 5, "v": 5}, batches=(), runs=keys_as_values)
        {'v': 'k'}
    """

    def works(heads: Mapping[str, str]) -> bool:
        return runs(_sizes(heads, batches, limits))

    if len(axes) < 2 or works({name: name for name in axes}):
        return {}
    first: dict[tuple[bool, int | None], str] = {}
    together = {name: first.setdefault((name in batches, size), name) for name, size in axes.items()}
    if not works(together):
        return {}
    # An axis that works with a size of its own is independent of the others. So are two axes that belong together
    # (the key and value lengths of a cache, independent of the new ones).
    for free in (*((name,) for name in axes), *itertools.combinations(axes, 2)):
        group = {together[name] for name in free}
        rest = [name for name in axes if together[name] in group and name not in free]
        if len(group) == 1 and rest:
            split = {**together, **dict.fromkeys(free, free[0]), **dict.fromkeys(rest, rest[0])}
            together = split if works(split) else together
    return {name: head for name, head in together.items() if name != head}


def _sizes(heads: Mapping[str, str], batches: Collection[str], limits: Sequence[AxisLimit]) -> Sizes:
    chosen: dict[str, int] = {}
    for name, head in heads.items():
        smallest = _SMALLEST_BATCH if name in batches else _SMALLEST_LENGTH
        taken = sum((other in batches) == (name in batches) for other in chosen)
        chosen.setdefault(head, smallest + taken)
    chosen = fit_sizes(limits, chosen)
    return {name: chosen[head] for name, head in heads.items()}
