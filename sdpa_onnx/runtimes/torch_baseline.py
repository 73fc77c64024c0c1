"""Runtime `torch`: PyTorch on the CPU, the baseline of timing and never the truth.

Runs the module that a model was exported from, or, for a file of one bare
attention, `ScaledDotProductAttention` built from its spec. It reads no graph:
what the file's nodes say beyond the spec is not run here.
"""

import importlib.util
from typing import TYPE_CHECKING

from sdpa_onnx.errors import RuntimeUnavailableError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Supported, Unsupported
from sdpa_onnx.runtimes.torch_session import RUNTIME, TorchSession

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TorchBaseline"]


class TorchBaseline:
    """PyTorch eager: SDPA where it expresses the case, the written formula where it does not."""

    name = RUNTIME
    measures_time = True

    def available(self) -> Supported | Unsupported:
        """Whether torch is installed (not imported: that takes seconds)."""
        try:
            is_there = importlib.util.find_spec("torch") is not None
        except ModuleNotFoundError:
            is_there = False
        return Supported() if is_there else Unsupported("torch is missing: pip install torch")

    def version(self) -> str:
        """Such as "torch 2.13.0+cpu"."""
        import torch

        return f"torch {torch.__version__}"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """A model exported in this process, or one bare attention."""
        import torch

        if isinstance(model.source, torch.nn.Module):
            return Supported()
        if _is_bare(model):
            return Supported()
        return Unsupported("torch runs modules and one bare attention (inputs Q, K, V, output Y), no other file")

    def load(self, model: OnnxModel, options: LoadOptions) -> TorchSession:
        """Load a model; see `Runtime.load`."""
        match self.available():
            case Unsupported(reason):
                raise RuntimeUnavailableError(f"Runtime '{self.name}' is not available: {reason}.")
            case Supported():
                pass
        match self.supports(model):
            case Unsupported(reason):
                raise SessionError(f"{self.name} cannot load the model: {reason}.")
            case Supported():
                pass
        return self._session(model, _module_of(model), options)

    def _session(self, model: OnnxModel, module: "nn.Module", options: LoadOptions) -> TorchSession:
        return TorchSession(model, module, options)


def _module_of(model: OnnxModel) -> "nn.Module":
    import torch

    from sdpa_onnx.torch_export.modules import ScaledDotProductAttention

    return model.source if isinstance(model.source, torch.nn.Module) else ScaledDotProductAttention(model.sites[0].spec)


def _is_bare(model: OnnxModel) -> bool:
    """Whether the graph's inputs and first output are those of its only attention.

    A fourth output (the scores) is none of torch's, and a second without a past neither.
    """
    if len(model.sites) != 1:
        return False
    site = model.sites[0]
    outputs = 3 if site.spec.has_past else 1
    return (
        sorted(site.inputs.values()) == sorted(model.input_names)
        and len(model.output_names) == outputs
        and model.output_names[0] == site.output
    )
