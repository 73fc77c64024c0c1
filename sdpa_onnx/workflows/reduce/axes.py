"""Shrink the named axes of any ONNX graph: slice its inputs, or draw new ones, at smaller sizes.

Does not use attention semantics, so sizes that the graph fixes, such as heads and widths, stay.
Does not run the graph: the caller checks whether a smaller size still fails.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import Feeds, draw_feeds, resolve_shape
from sdpa_onnx.workflows.check.session_sequence import sizes_of
from sdpa_onnx.workflows.reduce.case import targets
from sdpa_onnx.workflows.reduce.trials import OutOfTimeError

__all__ = ["ShrunkAxes", "shrink_axes"]


@dataclass(slots=True, kw_only=True)
class ShrunkAxes:
    """The smallest inputs so far.

    Args:
        feeds: Arrays by graph input name.
        sizes: Sizes of the named axes.
        dropped: The sizes that changed, such as "batch 97 -> 1".
        is_finished: True if no smaller size fails, False if the time limit was reached first.
    """

    feeds: Feeds
    sizes: dict[str, int]
    dropped: tuple[str, ...] = ()
    is_finished: bool = True


def shrink_axes(
    model: OnnxModel, feeds: Feeds, still_fails: Callable[[Feeds], bool], *, seed: int | None
) -> ShrunkAxes:
    """Make every named axis as short as possible, down to 1.

    Args:
        model: The graph.
        feeds: Inputs that fail.
        still_fails: Whether other inputs fail in the same way. May raise OutOfTimeError.
        seed: Seed of new draws, used where the sliced arrays no longer fail. None = the arrays are the
            user's and are only sliced.
    """
    start = sizes_of(model, feeds)
    best = ShrunkAxes(feeds=feeds, sizes=dict(start))
    try:
        changed = True
        while changed:
            shorter = [
                _shorten(model, axis, best, still_fails, seed) for axis in start
            ]  # a list: any() would stop early
            changed = any(shorter)
    except OutOfTimeError:
        best.is_finished = False
    pairs = ((axis, size, best.sizes[axis]) for axis, size in start.items())
    best.dropped = tuple(f"{axis} {old} -> {new}" for axis, old, new in pairs if old != new)
    return best


def _shorten(
    model: OnnxModel, axis: str, best: ShrunkAxes, still_fails: Callable[[Feeds], bool], seed: int | None
) -> bool:
    for target in targets(best.sizes[axis], 1):
        sizes = {**best.sizes, axis: target}
        for feeds in _candidates(model, best.feeds, sizes, seed):
            if still_fails(feeds):
                best.feeds, best.sizes = feeds, sizes
                return True
    return False


def _candidates(model: OnnxModel, feeds: Feeds, sizes: Mapping[str, int], seed: int | None) -> Iterator[Feeds]:
    """The first elements along every axis, then a new draw at the smaller sizes."""
    try:
        shapes = {
            value.name or "": resolve_shape(value, sizes)
            for value in model.ir.graph.inputs
            if (value.name or "") in feeds
        }
    except ModelError:
        return
    yield {
        name: np.ascontiguousarray(feeds[name][tuple(slice(0, size) for size in shape)])
        for name, shape in shapes.items()
    }
    if seed is not None:
        try:
            yield draw_feeds(model, sizes, spread=1.0, seed=seed)
        except ModelError:
            return
