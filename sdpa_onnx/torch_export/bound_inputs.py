"""Bind sample inputs to the parameters of `forward`, and choose their dynamic axes.

Uses shapes and types only; runs no module.
"""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sdpa_onnx.errors import ExportError

__all__ = ["BoundInputs", "SampleInputs", "axis_roles", "bind_inputs", "choose_axes", "enlarged"]

SampleInputs = tuple[object, ...] | dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundInputs:
    """Arguments of one call of `forward`.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        arguments: All arguments by parameter name, in the order of the signature.
    """

    args: tuple[object, ...]
    kwargs: dict[str, object]
    arguments: dict[str, object]

    def leaves(self) -> dict[str, Tensor]:
        """Every tensor by a readable name, in the order of torch.export.

        A tensor argument has the parameter's name. A tensor inside a tuple or
        dict has the parameter's name and its path, joined by underscores.
        """
        return {name: leaf for name, leaf in self._paths() if isinstance(leaf, Tensor)}

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """The same call with other tensors, in the order of `leaves`.

        Returns:
            Positional and keyword arguments; values that are not tensors stay unchanged.
        """
        replacements = iter(tensors)
        changed = {
            parameter: pytree.tree_map(lambda leaf: next(replacements) if isinstance(leaf, Tensor) else leaf, value)
            for parameter, value in self.arguments.items()
        }
        args = tuple(changed[parameter] for parameter in list(self.arguments)[: len(self.args)])
        return args, {name: changed[name] for name in self.kwargs}

    def _paths(self) -> list[tuple[str, object]]:
        named = []
        for parameter, value in self.arguments.items():
            for path, leaf in pytree.tree_flatten_with_path(value)[0]:
                steps = [str(getattr(step, "key", getattr(step, "idx", step))) for step in path]
                named.append(("_".join([parameter, *steps]), leaf))
        return named


def bind_inputs(module: nn.Module, sample_inputs: object) -> BoundInputs:
    """Bind the sample to the signature of `forward`.

    A tensor that occurs twice is cloned: otherwise torch would merge the two
    inputs and drop the second one from the graph.

    Raises:
        ExportError: If the sample is not a tuple or dict, or does not match the signature.
    """
    name = type(module).__name__
    signature = inspect.signature(module.forward)
    try:
        match sample_inputs:
            case Tensor():
                bound = signature.bind(sample_inputs)
            case tuple() | list():
                bound = signature.bind(*sample_inputs)
            case dict():
                bound = signature.bind(**sample_inputs)
            case _:
                raise ExportError(
                    f"The sample inputs of {name} are of type {type(sample_inputs).__name__}.",
                    hint="Give a tuple of tensors, or a dict of tensors by parameter name.",
                )
    except TypeError as error:
        raise ExportError(f"The sample inputs do not match {name}.forward{signature}: {error}.") from error
    seen: set[int] = set()

    def own(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        repeated = id(leaf) in seen
        seen.add(id(leaf))
        return leaf.detach().clone() if repeated else leaf.detach()

    bound.arguments = {parameter: pytree.tree_map(own, value) for parameter, value in bound.arguments.items()}
    inputs = BoundInputs(args=bound.args, kwargs=bound.kwargs, arguments=dict(bound.arguments))
    if not inputs.leaves():
        raise ExportError(f"The sample inputs of {name} contain no tensor.", hint="Give at least one.")
    return inputs


def choose_axes(
    inputs: BoundInputs, overrides: Mapping[str, Sequence[int]] | None
) -> tuple[dict[str, tuple[int, ...]], frozenset[tuple[str, int]]]:
    """Decide which axes of which tensor stay dynamic.

    Args:
        inputs: The bound sample.
        overrides: Axes by parameter name, instead of the defaults.

    Returns:
        Axes by tensor name, and those among them that are only a guess: the last
        axis of a 2-D float tensor may be a length or a width.

    Raises:
        ExportError: If an override names an unknown parameter or axis.
    """
    leaves = inputs.leaves()
    axes = {name: _default_axes(name, leaf) for name, leaf in leaves.items()}
    axes = {name: tuple(a for a in chosen if not _broadcasts(name, a, leaves, axes)) for name, chosen in axes.items()}
    for parameter, wanted in (overrides or {}).items():
        named = [name for name in leaves if name == parameter or name.startswith(f"{parameter}_")]
        named = [parameter] if parameter in leaves else named
        if parameter not in inputs.arguments or not named:
            near = difflib.get_close_matches(parameter, leaves, n=1)
            raise ExportError(
                f"dynamic_axes names '{parameter}', which is not a tensor of the sample inputs ({', '.join(leaves)}).",
                hint=f"Did you mean '{near[0]}'?" if near else None,
            )
        for name in named:
            axes[name] = _checked(name, leaves[name], wanted)
    overridden = set(overrides or {})
    guesses = {
        (name, 1)
        for name, leaf in leaves.items()
        if name not in overridden and leaf.dim() == 2 and leaf.is_floating_point() and not _is_mask(name, leaf)
    }
    return axes, frozenset(guesses)


def axis_roles(name: str, leaf: Tensor) -> tuple[str, ...]:
    """The role of each axis: batch_size, seq_len, q_seq_len and kv_seq_len of a mask, else dim<axis>."""
    rank = leaf.dim()
    roles = [f"dim{axis}" for axis in range(rank)]
    if rank == 1:
        return ("seq_len",) if leaf.is_floating_point() else ("batch_size",)
    if rank >= 2:
        roles[0] = "batch_size"
        roles[1 if rank < 4 else rank - 2] = "seq_len"
    if rank >= 3 and _is_mask(name, leaf):
        roles[-2:] = ["q_seq_len", "kv_seq_len"]
    return tuple(roles)


def _is_mask(name: str, leaf: Tensor) -> bool:
    return leaf.dtype == torch.bool or "mask" in name or "bias" in name


def _default_axes(name: str, leaf: Tensor) -> tuple[int, ...]:
    """Batch and sequence axes; head and width axes stay static."""
    rank, mask = leaf.dim(), _is_mask(name, leaf)
    match rank:
        case 0 | 1 | 2:
            return tuple(range(rank))
        case 3:
            return (0, 1, 2) if mask else (0, 1)
        case _:
            return (0, rank - 2, rank - 1) if mask else (0, rank - 2)


def _broadcasts(name: str, axis: int, leaves: Mapping[str, Tensor], axes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether an axis of size 1 is there to broadcast, and not because the sample is small.

    A batch of 1 broadcasts if another tensor has a larger batch. A length of 1
    broadcasts only in a mask, and only if no other tensor has that length.
    """
    leaf = leaves[name]
    if leaf.shape[axis] != 1:
        return False
    batch = axis == 0 and leaf.dim() > 2
    if not batch and not _is_mask(name, leaf):
        return False
    sizes = [
        tensor.shape[other_axis]
        for other, tensor in leaves.items()
        for other_axis in axes[other]
        if other != name and not _is_mask(other, tensor) and (other_axis == 0) == batch
    ]
    return any(size > 1 for size in sizes) if batch else bool(sizes) and 1 not in sizes


def enlarged(inputs: BoundInputs, axes: Mapping[str, tuple[int, ...]]) -> BoundInputs | None:
    """Enlarge dynamic axes of size 0 or 1, batch to 2 and lengths to 3; None if there are none.

    torch.export specialises sizes of 0 and 1.
    """
    names = iter(inputs.leaves())
    changed = False

    def grow(leaf: object) -> object:
        nonlocal changed
        if not isinstance(leaf, Tensor):
            return leaf
        for axis in axes[next(names)]:
            if leaf.shape[axis] < 2:
                changed = True
                count = 2 if axis == 0 else 3
                shape = [*leaf.shape[:axis], count, *leaf.shape[axis + 1 :]]
                leaf = leaf.expand(shape).clone() if leaf.shape[axis] else leaf.new_zeros(shape)
        return leaf

    grown = {parameter: pytree.tree_map(grow, value) for parameter, value in inputs.arguments.items()}
    if not changed:
        return None
    args = tuple(grown[parameter] for parameter in list(inputs.arguments)[: len(inputs.args)])
    return BoundInputs(args=args, kwargs={name: grown[name] for name in inputs.kwargs}, arguments=grown)


def _checked(name: str, leaf: Tensor, wanted: Sequence[int]) -> tuple[int, ...]:
    for axis in wanted:
        if not -leaf.dim() <= axis < leaf.dim():
            raise ExportError(
                f"dynamic_axes requests axis {axis} of '{name}', which has {leaf.dim()} axes.",
                hint=f"Give axes from 0 to {leaf.dim() - 1}.",
            )
    return tuple(sorted({axis % leaf.dim() for axis in wanted}))
