"""Sizes at which an operator has room for its integers: a cache that is full, or a table that is too short, is no fault.

Finds no relations between axes; runs nothing.
"""

from collections.abc import Collection, Mapping

import numpy as np

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import resolve_shape
from sdpa_onnx.workflows.check.integer_draws import IllegalSizesError, draw_integers

__all__ = ["nearest_legal"]


def nearest_legal(model: OnnxModel, sizes: Mapping[str, int], *, keep: Collection[str] = ()) -> dict[str, int] | None:
    """The sizes, with the longest axes halved until the integer inputs have legal numbers; None if they never have.

    Args:
        model: Whose axes they are.
        sizes: Size of every named axis.
        keep: Axes that do not change.

    Raises:
        ModelError: If an axis has no size.
    """
    found = dict(sizes)
    while not _is_legal(model, found):
        longest = max((axis for axis in found if axis not in keep), key=found.__getitem__, default=None)
        if longest is None or found[longest] < 2:  # noqa: PLR2004  # half of it would be none
            return None
        found[longest] //= 2
    return found


def _is_legal(model: OnnxModel, sizes: Mapping[str, int]) -> bool:
    shapes = {value.name or "": resolve_shape(value, sizes) for value in model.ir.graph.inputs}
    try:
        draw_integers(model.ir, shapes, sizes, np.random.default_rng(0))
    except IllegalSizesError:
        return False
    return True
