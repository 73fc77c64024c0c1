"""Axes that a module needs equally long although its inputs name them apart, found by running it.

The lengths of a cache's keys and values are such: torch.export keeps a symbol
for each, and the module raises as soon as they differ.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sdpa_onnx.core.attention.axis_links import find_links
from sdpa_onnx.torch_export.bound_inputs import BoundInputs
from sdpa_onnx.torch_export.capture import evaluating
from sdpa_onnx.torch_export.quiet import quiet

__all__ = ["linked_axes", "named_sizes"]

Dims = Sequence[Sequence[int | str]]


def named_sizes(inputs: BoundInputs, dims: Dims) -> dict[str, int]:
    """Size that each named axis has in the sample; sums and numbers have no name."""
    shapes = [leaf.shape for leaf in inputs.leaves().values()]
    pairs = (
        (dim, size) for axes, shape in zip(dims, shapes, strict=True) for dim, size in zip(axes, shape, strict=True)
    )
    found: dict[str, int] = {}
    for dim, size in pairs:
        if isinstance(dim, str) and dim.isidentifier():
            found.setdefault(dim, size)
    return found


def linked_axes(module: nn.Module, inputs: BoundInputs, dims: Dims) -> dict[str, str]:
    """Find axes that must have the size of another one; the second by the first.

    Args:
        module: Run on repeated parts of the sample; its state should be no one's (a copy).
        inputs: A sample on which it runs.
        dims: For each tensor of the sample, in order, the name or number of each axis.

    Returns:
        Nothing where every axis is free, or where equal sizes do not help either.
    """
    batches = {str(axes[0]) for axes in dims if len(axes) > 1}

    def runs(sizes: Mapping[str, int]) -> bool:
        tensors = [_resized(leaf, axes, sizes) for leaf, axes in zip(inputs.leaves().values(), dims, strict=True)]
        args, kwargs = inputs.with_tensors(tensors)
        try:
            with evaluating(module), quiet():
                module(*args, **kwargs)
        except Exception:  # noqa: BLE001  # what a module raises at sizes that do not fit is its own affair
            return False
        return True

    return find_links(named_sizes(inputs, dims), batches=batches, runs=runs)


def _resized(leaf: Tensor, axes: Sequence[int | str], sizes: Mapping[str, int]) -> Tensor:
    """Repeat or cut a tensor along its named axes."""
    for axis, name in enumerate(axes):
        if isinstance(name, str) and name in sizes and leaf.shape[axis]:
            index = torch.arange(sizes[name]) % leaf.shape[axis]
            leaf = leaf.index_select(axis, index)
    return leaf
