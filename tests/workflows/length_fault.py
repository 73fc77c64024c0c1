"""onnxruntime's CPU provider with a fault at one length only: found only by a run at that very length."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, get_runtime
from tests.workflows.wrapped_runtime import WrappedRuntime, WrappedSession

__all__ = ["LENGTH", "WrongAtLength", "spoiled"]

Array = NDArray[np.generic]
# No check chooses it by itself.
LENGTH = 77


def spoiled(outputs: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    """Floating-point outputs of these names times 1.5, where one of their axes has the length."""
    return {
        name: np.asarray(array * 1.5, array.dtype) if name in names and LENGTH in array.shape else array
        for name, array in outputs.items()
    }


@dataclass
class WrongAtLength(WrappedRuntime):
    """See the module; wrong are the attention outputs and the outputs of the graph, or only the latter.

    Args:
        inside: Whether the tapped output of each attention is wrong too.
    """

    inside: bool = True
    name: str = "ort-cpu"
    measures_time: bool = True
    real: Runtime = field(default_factory=lambda: get_runtime("ort-cpu"))

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        inside = [site.output for site in model.sites] if self.inside else []
        own = [name for name in model.output_names if "present" not in name]
        ends = own if model.is_bare_attention or not self.inside else []
        return _WrongSession(self.real.load(model, options), [*inside, *ends])


@dataclass
class _WrongSession(WrappedSession):
    session: Session
    names: list[str]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return spoiled(self.session.run(inputs), self.names)
