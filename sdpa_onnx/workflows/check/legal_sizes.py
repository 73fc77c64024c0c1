"""Sizes at which an operator has room for its integers: a full cache, or a short table, is no fault.

Runs nothing: the constraints of `graph.integers.rules` decide.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import resolve_shape
from sdpa_onnx.workflows.check.integer_draws import IllegalSizesError, draw_integers

__all__ = ["nearest_legal"]

Sizes = dict[str, int]


def nearest_legal(
    model: OnnxModel,
    sizes: Mapping[str, int],
    *,
    keep: Collection[str] = (),
    complete: Callable[[Sizes], Sizes] = dict,
) -> Sizes | None:
    """The sizes, changed where the integer inputs would have no legal numbers; None if no legal sizes are found.

    The longest axes are halved. Then one axis is tried as the sum of two others, as a mask is as long as the cache
    and the new tokens.

    Args:
        model: Whose axes they are.
        sizes: Sizes of axes.
        keep: Axes that do not change.
        complete: Sizes of all axes from these.

    Raises:
        ModelError: If an axis has no size.
    """
    return next((one for one in _candidates(dict(sizes), keep) if _is_legal(model, complete(one))), None)


def _candidates(sizes: Sizes, keep: Collection[str]) -> Iterator[Sizes]:
    yield sizes
    free = [axis for axis in sizes if axis not in keep]
    halved = dict(sizes)
    while free and max(halved[axis] for axis in free) > 1:
        halved[max(free, key=halved.__getitem__)] //= 2
        yield dict(halved)
    for axis, pair in itertools.product(free, itertools.combinations(sizes, 2)):
        if axis not in pair:
            joined = {**sizes, axis: sum(sizes[one] for one in pair)}
            yield joined
            # One sample, or one new token: onnxruntime has no chunks of several samples.
            yield from ({**joined, one: 1} for one in free if one not in pair and one != axis)
            yield from ({**joined, one: 1, axis: joined[axis] - sizes[one] + 1} for one in pair if one in free)


def _is_legal(model: OnnxModel, sizes: Mapping[str, int]) -> bool:
    shapes = {value.name or "": resolve_shape(value, sizes) for value in model.ir.graph.inputs}
    try:
        draw_integers(model.ir, shapes, sizes, np.random.default_rng(0))
    except IllegalSizesError:
        return False
    return True
