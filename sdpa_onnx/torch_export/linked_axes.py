"""Find axes with different names that a module requires to have equal sizes, by running it at other sizes.

Example: torch.export keeps separate symbols for the lengths of cached keys and values, but the module raises if they
differ. Does not rename axes; the exporter does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sdpa_onnx.core.attention.axis_limits import read_expression
from sdpa_onnx.core.attention.axis_links import find_links
from sdpa_onnx.torch_export.bound_inputs import BoundInputs
from sdpa_onnx.torch_export.capture import eval_mode
from sdpa_onnx.torch_export.quiet import quiet

__all__ = ["input_dims", "linked_axes", "named_sizes"]

Dims = Sequence[Sequence[int | str]]


class _EqualLengths(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's, without types
    """Reject an attention with more keys than values or the reverse: torch's CPU kernel computes one anyway."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if "scaled_dot_product" in str(func):
            _, key, value, *_ = args
            if key.shape[-2] != value.shape[-2]:
                raise ValueError(f"{key.shape[-2]} keys, {value.shape[-2]} values")
        return func(*args, **(kwargs or {}))


def input_dims(model: ir.Model) -> list[tuple[int | str, ...]]:
    """Number or symbol of each axis of each graph input; "" for an axis with neither."""
    return [
        tuple(dim if isinstance(dim, int) else str(dim.value or "") for dim in value.shape or ())
        for value in model.graph.inputs
    ]


def named_sizes(inputs: BoundInputs, dims: Dims) -> dict[str, int]:
    """Size of each named axis in the sample, also of one that occurs only in an expression such as 4*images."""
    shapes = [leaf.shape for leaf in inputs.leaves().values()]
    found: dict[str, int] = {}
    pairs = [
        (read_expression(dim), size)
        for axes, shape in zip(dims, shapes, strict=True)
        for dim, size in zip(axes, shape, strict=True)
        if isinstance(dim, str) and dim
    ]
    for expression, size in sorted(pairs, key=lambda pair: not pair[0].is_name):
        for name, solved in expression.solved(size, found).items():
            found.setdefault(name, solved)
    return found


def linked_axes(module: nn.Module, inputs: BoundInputs, dims: Dims) -> dict[str, str]:
    """Find axes that must have the size of another axis; maps the second name to the first.

    Args:
        module: Run on repeated parts of the sample; pass a copy, because its state may change.
        inputs: A sample on which the module runs.
        dims: For each tensor of the sample, in order, the name or number of each axis.

    Returns:
        Empty if every axis is independent, or if equal sizes do not help either.
    """
    batches = {str(axes[0]) for axes in dims if len(axes) > 1}

    def runs(sizes: Mapping[str, int]) -> bool:
        tensors = [_resized(leaf, axes, sizes) for leaf, axes in zip(inputs.leaves().values(), dims, strict=True)]
        args, kwargs = inputs.with_tensors(tensors)
        try:
            with eval_mode(module), quiet(), _EqualLengths():  # type: ignore[no-untyped-call]  # as above
                module(*args, **kwargs)
        except Exception:  # noqa: BLE001  # a module may raise anything at mismatched sizes
            return False
        return True

    return find_links(named_sizes(inputs, dims), batches=batches, runs=runs)


def _resized(leaf: Tensor, axes: Sequence[int | str], sizes: Mapping[str, int]) -> Tensor:
    """Repeat or truncate a tensor along its axes of these names, or of expressions of them."""
    for axis, text in enumerate(axes):
        expression = read_expression(text) if isinstance(text, str) and text else None
        if expression is not None and {*expression.names} <= {*sizes} and leaf.shape[axis]:
            index = torch.arange(max(expression.at(sizes), 0)) % leaf.shape[axis]
            leaf = leaf.index_select(axis, index)
    return leaf
