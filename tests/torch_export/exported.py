"""Run an exported model and measure how far it is from torch in float64."""

import copy
from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sdpa_onnx.graph.model import OnnxModel

# Float32 rounding through a layer of width 512 stays below 3e-6 here (measured); a wrong scale, mask
# or head order is above 1e-2. The verdict of the product uses a proven bound instead (core/judge/agreement).
LIMIT = 2e-5


class Comparison:
    """A model and the module that it was exported from; both are loaded once."""

    def __init__(self, model: OnnxModel, module: nn.Module) -> None:
        self._names = model.input_names
        self._session = ort.InferenceSession(model.to_bytes(), providers=["CPUExecutionProvider"])
        self._wide = copy.deepcopy(module).double().eval()

    def max_abs_error(self, inputs: Sequence[Tensor]) -> float:
        """Largest deviation from float64 torch over all outputs; infinite if a shape differs."""
        feeds = {name: tensor.numpy() for name, tensor in zip(self._names, inputs, strict=True)}
        with torch.no_grad():
            output = self._wide(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs))
        pairs = zip(self._session.run(None, feeds), _flat(output), strict=True)
        return max(
            float(np.abs(actual - expected.numpy()).max(initial=0.0))
            if actual.shape == tuple(expected.shape)
            else float("inf")
            for actual, expected in pairs
        )


def run(model: OnnxModel, inputs: Sequence[Tensor]) -> dict[str, NDArray[np.generic]]:
    """Every output by name, on onnxruntime's CPU provider."""
    session = ort.InferenceSession(model.to_bytes(), providers=["CPUExecutionProvider"])
    feeds = {name: tensor.numpy() for name, tensor in zip(model.input_names, inputs, strict=True)}
    return dict(zip(model.output_names, session.run(None, feeds), strict=True))


def max_abs_error(model: OnnxModel, module: nn.Module, inputs: Sequence[Tensor]) -> float:
    """Largest deviation from float64 torch over all outputs, for one call."""
    return Comparison(model, module).max_abs_error(inputs)


def _flat(output: object) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    return [tensor for part in output for tensor in _flat(part)] if isinstance(output, tuple) else []
