"""Export modules with both of torch's exporters, for graphs as users have them."""

import io
from collections.abc import Sequence

import onnx
import onnx_ir as ir
import torch

from sdpa_onnx.torch_export.quiet import quiet

Tensors = Sequence[torch.Tensor]
# Dynamic axes by argument.
Axes = Sequence[Sequence[int]]


def by_torchscript(module: torch.nn.Module, arguments: Tensors, axes: Axes, *, opset: int = 17) -> ir.Model:
    names = [f"in_{number}" for number in range(len(arguments))]
    named = {
        name: {axis: f"{name}_{axis}" for axis in varying} for name, varying in zip(names, axes, strict=True) if varying
    }
    file = io.BytesIO()
    with quiet():
        torch.onnx.export(
            module.eval(),
            tuple(arguments),
            file,
            dynamo=False,
            opset_version=opset,
            input_names=names,
            dynamic_axes=named,
        )
    return ir.from_proto(onnx.load_from_string(file.getvalue()))


def by_dynamo(module: torch.nn.Module, arguments: Tensors, axes: Axes, *, opset: int = 18) -> ir.Model:
    dynamic = tuple(dict.fromkeys(varying, torch.export.Dim.DYNAMIC) for varying in axes)
    with quiet():
        program = torch.onnx.export(
            module.eval(), tuple(arguments), dynamo=True, opset_version=opset, dynamic_shapes=dynamic, verbose=False
        )
    model = program.model
    for number, value in enumerate(model.graph.inputs):
        value.name = f"in_{number}"
    return model
