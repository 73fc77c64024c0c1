"""Inputs of a file from any exporter: unnamed axes get a name, and masks hide a row as a whole.

`feeds` draws the numbers themselves.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.check.integer_draws import integer_masks
from sdpa_onnx.workflows.check.mask_inputs import visible_keys

__all__ = ["named_axes", "other_choices", "sizes_of", "with_hidden_rows"]

Array = NDArray[np.generic]

# Single booleans of which every combination is tried.
_MOST_CHOICES = 3


def named_axes(model: OnnxModel) -> OnnxModel:
    """The model with a name for every axis of its inputs that may change; itself where all have one.

    Running the model shows which of them must be equally long.
    """
    if model.facts.has_named_axes:
        return model
    copy = model.ir.clone()
    for value in copy.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([_named(size, value, axis) for axis, size in enumerate(value.shape)])
    return replace(model, ir=copy)


def _named(size: int | ir.SymbolicDim, value: ir.Value, axis: int) -> int | str:
    if isinstance(size, int):
        return size
    return size.value or f"{''.join(c if c.isalnum() else '_' for c in value.name or '')}_axis{axis}"


def sizes_of(model: OnnxModel, arrays: Mapping[str, Array]) -> dict[str, int]:
    """The sizes of named axes, from the shapes of given arrays."""
    found = {
        str(axis.value): size
        for value in model.ir.graph.inputs
        for axis, size in zip(value.shape or (), arrays[value.name or ""].shape, strict=True)
        if isinstance(axis, ir.SymbolicDim)
    }
    return {axis: found[axis] for axis in model.facts.axes if axis in found}


def other_choices(model: OnnxModel, feeds: Feeds) -> Iterator[tuple[str, Feeds]]:
    """The inputs with other values of the single booleans among them, which choose a branch: what was changed, and all.

    Every combination of the first three; of a model with more, the others keep their value.
    """
    single = [
        value.name or ""
        for value in model.ir.graph.inputs
        if value.dtype is ir.DataType.BOOL and feeds[value.name or ""].ndim < 2 and feeds[value.name or ""].size == 1
    ][:_MOST_CHOICES]
    for chosen in itertools.product((False, True), repeat=len(single)):
        other = {name: np.full_like(feeds[name], value) for name, value in zip(single, chosen, strict=True)}
        if any(bool((array != feeds[name]).any()) for name, array in other.items()):
            yield ", ".join(f"{name} {array.item()}" for name, array in other.items()), {**feeds, **other}


def with_hidden_rows(model: OnnxModel, feeds: Feeds, *, keep_visible: bool = False) -> Feeds | None:
    """The inputs with one row of every mask hidden as a whole; None where there is no mask.

    A mask is a boolean input, or one of integers that are 0 or 1; its row is the last query's,
    or the last sample's where the mask has no queries.

    Args:
        model: Whose inputs they are.
        feeds: The inputs.
        keep_visible: Leave some keys of that row visible, see `visible_keys`.
    """
    kept = visible_keys(model) if keep_visible else slice(0)
    integers = integer_masks(model.ir, {name: array.shape for name, array in feeds.items()}, {})
    changed = {
        value.name or "": _hidden(feeds[value.name or ""], kept)
        for value in model.ir.graph.inputs
        if (value.dtype is ir.DataType.BOOL or value.name in integers)
        and feeds[value.name or ""].ndim >= 2
        and feeds[value.name or ""].size
    }
    return {**feeds, **changed} if changed else None


def _hidden(mask: Array, kept: slice) -> Array:
    hidden = mask.copy()
    row = (..., slice(-1, None), slice(None)) if hidden.shape[-2] > 1 else (slice(-1, None), ...)
    hidden[row] = 0
    hidden[row][..., kept] = 1
    return hidden
