"""Whether the module of a model runs on inputs of its graph; what it gives is judged elsewhere."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel

if TYPE_CHECKING:
    from torch import nn

__all__ = ["arguments_of", "runs_at"]


def arguments_of(
    model: OnnxModel, feeds: Mapping[str, NDArray[np.generic]]
) -> tuple[tuple[Any, ...], dict[str, object]]:
    """What the module of a model is called with for these inputs of its graph."""
    import torch

    tensors = [torch.from_numpy(array.copy()) for array in feeds.values()]
    return (tuple(tensors), {}) if model.bind is None else model.bind(tensors)


def runs_at(model: OnnxModel, feeds: Mapping[str, NDArray[np.generic]]) -> bool:
    """Whether the module takes these arrays; True where there is none to ask."""
    if model.source is None or model.bind is None:
        return True
    from sdpa_onnx.torch_export.capture import evaluating
    from sdpa_onnx.torch_export.quiet import quiet

    module = cast("nn.Module", model.source)
    args, kwargs = arguments_of(model, feeds)
    try:
        with evaluating(module), quiet():
            module(*args, **kwargs)
    except Exception:  # noqa: BLE001  # what a module raises at sizes that do not fit is its own affair
        return False
    return True
