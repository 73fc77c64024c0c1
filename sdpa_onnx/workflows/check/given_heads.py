"""Read attention whose number or width of heads is an axis of the inputs, at the size that the caller gives for it.

The axis becomes that number in a copy; all others stay as they are. Without a given size nothing changes.
"""

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.file_feeds import named_axes, sizes_of
from sdpa_onnx.workflows.check.lifted_model import LiftedModel, with_lifted_sites

__all__ = ["with_given_heads"]


def with_given_heads(model: OnnxModel, check: CheckOptions) -> tuple[LiftedModel, CheckOptions]:
    """The model with every attention that can be read, if need be at given sizes, and the check without these sizes.

    Args:
        model: Is not changed.
        check: Its sizes, or the shapes of its inputs, are given.
    """
    lifted = with_lifted_sites(model)
    named = named_axes(model)
    given = dict(check.sizes) if check.inputs is None else sizes_of(named, check.inputs)
    given = {axis: size for axis, size in given.items() if axis in named.facts.axes and size > 0}
    if not given or all(one.attention is not None for one in lifted.found):
        return lifted, check
    best = with_lifted_sites(_fixed(named, given))
    if len(best.model.sites) <= len(lifted.model.sites):
        return lifted, check
    for axis in tuple(given):
        fewer = {name: size for name, size in given.items() if name != axis}
        trial = with_lifted_sites(_fixed(named, fewer))
        if len(trial.model.sites) == len(best.model.sites):
            best, given = trial, fewer
    return best, replace(check, sizes={axis: size for axis, size in check.sizes.items() if axis not in given})


def _fixed(model: OnnxModel, sizes: Mapping[str, int]) -> OnnxModel:
    """A copy in which some axes have one size, wherever the graph names them."""
    copy = model.ir.clone()
    for value in (*copy.graph.inputs, *(output for node in copy.graph for output in node.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape([_size(one, sizes) for one in value.shape])
    return replace(model, ir=copy)


def _size(axis: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | ir.SymbolicDim:
    return axis if isinstance(axis, int) else sizes.get(str(axis.value), axis)
