"""A real runtime whose attention has one of the core's planted faults, at every site of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.faults.planted_faults import FAULTS, Fault
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, get_runtime
from tests.workflows.wrapped_runtime import WrappedRuntime, WrappedSession

Arrays = Mapping[str, NDArray[np.generic]]


def fault(name: str) -> Fault:
    return next(one for one in FAULTS if one.name == name)


@dataclass
class PlantedSession(WrappedSession):
    session: Session
    model: OnnxModel
    fault: Fault

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """The fault is in the kernel, so it is there whether or not the values around the attention are outputs."""
        outputs = self.session.run(inputs)
        arrays = {**self.model.constants(), **inputs, **outputs}
        for site in self.model.sites:
            if site.output not in outputs or not self.fault.applies(site.spec):
                continue
            right = site.outputs_in(outputs)
            wrong = self.fault.plant(site.spec, site.arrays_in(arrays), right, np.random.default_rng(0))
            outputs |= {site.outputs[role]: array for role, array in wrong.items()}
        return {name: outputs[name] for name in self.model.output_names}


@dataclass
class Planted(WrappedRuntime):
    """onnxruntime's CPU provider with a planted fault."""

    fault: Fault
    name: str = "ort-cpu"
    measures_time: bool = True
    real: Runtime = field(default_factory=lambda: get_runtime("ort-cpu"))

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        return PlantedSession(self.real.load(model.tapped(), options), model, self.fault)
