"""Read attention whose number or width of heads is an axis or the contents of an input, as the caller gives it.

An axis becomes that number in a copy, an input is fed with it; all others stay as they are. Without it nothing changes.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.given_numbers import give, is_single
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.file_feeds import named_axes, sizes_of
from sdpa_onnx.workflows.check.lifted_model import LiftedModel, with_lifted_sites

__all__ = ["with_given_heads"]

Array = NDArray[np.generic]


# Numbers of one shape.
_MOST_NUMBERS = 8


def with_given_heads(model: OnnxModel, check: CheckOptions) -> tuple[LiftedModel, CheckOptions]:
    """The model with every attention that can be read, if need be at given sizes, and the check without these sizes.

    Args:
        model: Is not changed.
        check: Its sizes, or the shapes and integers of its inputs, are given.
    """
    model, check = _with_numbers(model, check)
    lifted = with_lifted_sites(model)
    named = named_axes(model)
    given = dict(check.sizes) if check.inputs is None else sizes_of(named, check.inputs)
    given = {axis: size for axis, size in given.items() if axis in named.facts.axes and size > 0}
    if all(one.attention is not None for one in lifted.found):
        return lifted, check
    if check.inputs is not None and (numbers := _few_integers(named, check.inputs)):
        named = _given(named, numbers)
        lifted = _better(with_lifted_sites(named), lifted)
    best = with_lifted_sites(_fixed(named, given)) if given else lifted
    if _count(best) <= _count(lifted):
        return lifted, check
    for axis in tuple(given):
        fewer = {name: size for name, size in given.items() if name != axis}
        trial = with_lifted_sites(_fixed(named, fewer))
        if _count(trial) == _count(best):
            best, given = trial, fewer
    return best, replace(check, sizes={axis: size for axis, size in check.sizes.items() if axis not in given})


def _with_numbers(model: OnnxModel, check: CheckOptions) -> tuple[OnnxModel, CheckOptions]:
    """Sizes that name an input that is one integer are its contents."""
    single = {value.name or "": value for value in model.ir.graph.inputs if is_single(value)}
    axes = named_axes(model).facts.axes
    numbers = {
        name: np.full([1] * len(single[name].shape or ()), size, (single[name].dtype or ir.DataType.INT64).numpy())
        for name, size in check.sizes.items()
        if name in single and name not in axes
    }
    if not numbers:
        return model, check
    left = {axis: size for axis, size in check.sizes.items() if axis not in numbers}
    return _given(model, numbers), replace(check, sizes=left)


def _few_integers(model: OnnxModel, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Given inputs that may be a number of heads, or a shape."""
    names = {value.name for value in model.ir.graph.inputs}
    return {
        name: array
        for name, array in inputs.items()
        if name in names and array.dtype.kind == "i" and array.ndim < 2 and 0 < array.size <= _MOST_NUMBERS
    }


def _given(model: OnnxModel, numbers: Mapping[str, Array]) -> OnnxModel:
    """A copy in which inputs have known contents."""
    copy = model.ir.clone()
    for value in copy.graph.inputs:
        if value.name in numbers:
            give(value, numbers[value.name or ""])
    return replace(model, ir=copy)


def _count(lifted: LiftedModel) -> int:
    return len(lifted.model.sites) + len(lifted.model.body_sites)


def _better(one: LiftedModel, other: LiftedModel) -> LiftedModel:
    return one if _count(one) > _count(other) else other


def _fixed(model: OnnxModel, sizes: Mapping[str, int]) -> OnnxModel:
    """A copy in which some axes have one size, wherever the graph names them."""
    copy = model.ir.clone()
    for value in (*copy.graph.inputs, *(output for node in copy.graph for output in node.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape([_size(one, sizes) for one in value.shape])
    return replace(model, ir=copy)


def _size(axis: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | ir.SymbolicDim:
    return axis if isinstance(axis, int) else sizes.get(str(axis.value), axis)
