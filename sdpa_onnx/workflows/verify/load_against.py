"""Load a model together with the module that its outputs are compared with."""

from dataclasses import replace
from typing import TYPE_CHECKING

from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import ModelSource, OnnxModel, load_model
from sdpa_onnx.graph.model_facts import TRACED_KEY
from sdpa_onnx.workflows.verify.found_limits import module_refusal

if TYPE_CHECKING:
    from torch import nn

    from sdpa_onnx.torch_export.bound_inputs import BoundInputs, SampleInputs
    from sdpa_onnx.torch_export.linked_axes import Dims

__all__ = ["load_against"]


def load_against(source: ModelSource, against: object) -> OnnxModel:
    """Load a model, with the module that its outputs are compared with.

    Args:
        source: The model.
        against: A `torch.nn.Module`, its name, or None. Without sample inputs of its own, a module is called with the
            inputs of the model in their order.

    Raises:
        ModelError: If there is no such file.
        PlanError: If there is no such target, or it does not accept the inputs of the model.
    """
    model = load_model(source)
    if against is None or model.source is against:
        return model
    import torch

    from sdpa_onnx.torch_export.targets import find_module, sample_of

    if isinstance(against, str):
        _, module, sample = find_module(against)
        name = against
    elif isinstance(against, torch.nn.Module):
        name, module = type(against).__name__, against
        sample = sample_of(module, name=name)
    else:
        raise PlanError(f"A {type(against).__name__} is no PyTorch module.", hint="Give a module or its name.")
    return replace(model, source=module, bind=None) if sample is None else _bound(model, module, sample, name)


def _bound(model: OnnxModel, module: "nn.Module", sample: "SampleInputs", name: str) -> OnnxModel:
    """The model with a module that is called like its sample.

    Raises:
        PlanError: If it does not accept the inputs of the model.
    """
    from sdpa_onnx.torch_export.bound_inputs import bind_inputs
    from sdpa_onnx.torch_export.linked_axes import input_dims, named_sizes

    bound, dims, file = bind_inputs(module, sample), input_dims(model.ir), model.path or "the model"
    if len(bound.leaves()) != len(model.input_names):
        raise PlanError(
            f"{name} takes {len(bound.leaves())} tensors, {file} has {len(model.input_names)} inputs.",
            hint="Compare a file with the module that it came from.",
        )
    misfits = _misfits(bound, dims)
    rejected = f"{name} does not accept the inputs of {file} ({', '.join(misfits)})."
    if any(len(axes) != leaf.ndim for axes, leaf in zip(dims, bound.leaves().values(), strict=True)):
        raise PlanError(rejected, hint="Is it the right module?")
    # Beside the graph, not in it: where a search for a fixed axis or setting starts.
    model.ir.meta[TRACED_KEY] = traced = named_sizes(bound, dims)
    against = replace(model, source=module, bind=bound.with_tensors)
    # Another number in the sample may be a batch that is fixed in the file: the module decides, at its own sizes.
    if misfits and module_refusal(against, traced, 0):
        raise PlanError(rejected, hint="Is it the right module?")
    return against


def _misfits(bound: "BoundInputs", dims: "Dims") -> list[str]:
    """Inputs whose fixed sizes differ from the sample of the module: x: 128 wide, expects 64."""
    found = []
    for (name, leaf), axes in zip(bound.leaves().items(), dims, strict=True):
        if len(axes) != leaf.ndim:
            found.append(f"{name}: {len(axes)} axes, expects {leaf.ndim}")
            continue
        for place, (size, own) in enumerate(zip(axes, leaf.shape, strict=True)):
            if isinstance(size, int) and size != own:
                what = f"{size} wide" if place == leaf.ndim - 1 else f"axis {place} is {size} long"
                found.append(f"{name}: {what}, expects {own}")
    return found
