"""Report a number in a graph that is fixed at its value at export, although the axis itself is free.

Searches the module for the line that computes such a number from a size. `dynamic_axes`
has found before that the graph is wrong.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from sdpa_onnx.core.attention.size_functions import round_to_float32
from sdpa_onnx.errors import ExportError, ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import arguments_of, draw_feeds
from sdpa_onnx.workflows.verify.baked_settings import scalar_constants

if TYPE_CHECKING:
    from torch import nn

    from sdpa_onnx.torch_export.size_numbers import SizeDependentNumber

__all__ = ["fixed_number"]


def fixed_number(
    model: OnnxModel, right: Mapping[str, int], wrong: Mapping[str, int], *, changed: Sequence[str], seed: int
) -> str:
    """Report the number that was fixed, if the graph holds it, and which line computes it; else a guess, called so.

    Args:
        model: The graph and its module.
        right: Sizes at which the graph is right.
        wrong: Sizes at which it runs and its numbers are wrong.
        changed: The axes that were changed between them; those that follow one of them are left out.
        seed: Seed of the inputs.
    """
    before, after = (", ".join(f"{axis} {sizes[axis]}" for axis in changed) for sizes in (right, wrong))
    fact = f"It is right at {before} and wrong at {after}"
    number = _number(model, right, wrong, seed)
    if number is None:
        return (
            f"{fact}. A guess: a number in the graph was fixed at the size at export. None was found that the module "
            "computes from a size in Python."
        )
    own = f"{number.first:.6g} at {before}, {number.second:.6g} at {after}"
    own += f" ({number.where})" if number.where else ""
    if _is_held(model, number.first):
        return (
            f"{fact}: the graph holds, as a constant, a number of the size at export that the module computes from a "
            f"size: {own}."
        )
    return (
        f"{fact}. A guess: a number in the graph was fixed at the size at export; the module computes one from a size: "
        f"{own}, which is not a constant of the graph."
    )


def _is_held(model: OnnxModel, number: float) -> bool:
    """Whether a constant is the number, its inverse, its square or its root, as exporters write it."""
    numbers = [one for one in scalar_constants(model) if one and math.isfinite(one)]
    forms = (power for one in numbers for power in (one, 1.0 / one, one * one, 1.0 / (one * one), abs(one) ** 0.5))
    return any(round_to_float32(form) == round_to_float32(number) for form in forms)


def _number(
    model: OnnxModel, right: Mapping[str, int], wrong: Mapping[str, int], seed: int
) -> "SizeDependentNumber | None":
    if model.source is None:
        return None
    from sdpa_onnx.torch_export.size_numbers import find_size_dependent_number

    # A copy: what the module remembers of these calls must not reach the judge.
    module = copy.deepcopy(cast("nn.Module", model.source))
    try:
        first, second = (
            arguments_of(model, draw_feeds(model, sizes, spread=1.0, seed=seed)) for sizes in (right, wrong)
        )
        return find_size_dependent_number(module, first, second)
    except (ExportError, ModelError):
        return None
