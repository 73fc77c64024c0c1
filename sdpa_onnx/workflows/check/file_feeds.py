"""Inputs of a file from any exporter: unnamed axes get a name, integers that index a table stay inside it.

`feeds` draws the numbers themselves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import Feeds

__all__ = ["index_limits", "legal", "named_axes", "with_hidden_rows"]

Array = NDArray[np.generic]

_VISIBLE = 0.75
# Operators that may lie between an input and the table that it indexes.
_SEEN_THROUGH = frozenset({"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand"})


def named_axes(model: OnnxModel) -> OnnxModel:
    """The model with a name for every axis of its inputs that may change; itself where all have one.

    An axis without a name, or named by an expression that is no sum of names, gets one of its own; running the
    model shows which of them must be equally long.
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
    text = str(size.value or "")
    return text if text.isidentifier() else f"{''.join(c if c.isalnum() else '_' for c in value.name or '')}_axis{axis}"


def index_limits(model: ir.Model) -> dict[str, int]:
    """Length of the shortest table that an integer input indexes, by the input's name."""
    found: dict[str, int] = {}
    for value in model.graph.inputs:
        if value.dtype is not None and value.dtype.is_integer():
            lengths = list(_tables(value))
            if lengths:
                found[value.name or ""] = min(lengths)
    return found


def _tables(start: ir.Value) -> Iterator[int]:
    """First axes of the constants that a value picks rows of."""
    reached = [start]
    seen: set[int] = set()
    while reached:
        value = reached.pop()
        for use in value.uses():
            node = use.node
            if node.op_type == "Gather" and use.idx == 1 and node.inputs[0] is not None:
                yield from _length(node)
            elif node.op_type in _SEEN_THROUGH and use.idx == 0 and id(node) not in seen:
                seen.add(id(node))
                reached += list(node.outputs)


def _length(gather: ir.Node) -> Iterator[int]:
    table = gather.inputs[0]
    axis = gather.attributes.get("axis")
    position = axis.as_int() if axis is not None else 0
    if table is None or table.shape is None or not -len(table.shape) <= position < len(table.shape):
        return
    size = table.shape[position]
    if isinstance(size, int) and size > 0:
        yield size


def legal(feeds: Feeds, limits: Mapping[str, int], seed: int) -> Feeds:
    """Inputs whose indices are spread over their tables; other whole numbers are a mask that hides no row as a whole.

    A mask is 1 three times out of four and always at position 0 of the last axis, as boolean ones are.
    """
    rng = np.random.default_rng(seed)
    drawn = {name: rng.integers(0, limits[name], feeds[name].shape).astype(feeds[name].dtype) for name in limits}
    for name, array in feeds.items():
        if name not in limits and array.dtype.kind in "iu" and array.ndim >= 2:
            drawn[name] = (rng.random(array.shape) < _VISIBLE).astype(array.dtype)
            drawn[name][..., :1] = 1
    return {**feeds, **drawn}


def with_hidden_rows(
    model: OnnxModel, feeds: Feeds, limits: Mapping[str, int], *, keep_first: bool = False
) -> Feeds | None:
    """The inputs with one row of every mask hidden as a whole; None where there is no mask.

    A mask is a boolean input, or one of whole numbers that indexes nothing; its row is the last query's,
    or the last sample's where the mask has no queries.

    Args:
        model: Whose inputs they are.
        feeds: The inputs.
        limits: Lengths of tables by the inputs that index them, see `index_limits`.
        keep_first: Leave the first key of that row visible.
    """
    changed = {
        value.name or "": _hidden(feeds[value.name or ""], keep_first=keep_first)
        for value in model.ir.graph.inputs
        if value.dtype is not None
        and (value.dtype is ir.DataType.BOOL or value.dtype.is_integer())
        and value.name not in limits
        and feeds[value.name or ""].ndim >= 2
        and feeds[value.name or ""].size
    }
    return {**feeds, **changed} if changed else None


def _hidden(mask: Array, *, keep_first: bool) -> Array:
    hidden = mask.copy()
    start = 1 if keep_first else 0
    if hidden.shape[-2] > 1:
        hidden[..., -1:, start:] = 0
    else:
        hidden[-1:, ..., start:] = 0
    return hidden
