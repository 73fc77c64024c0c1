"""A real runtime whose attention has one of the core's planted faults, at every site of a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.faults.planted_faults import FAULTS, Fault
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Supported, Unsupported, get_runtime

Arrays = Mapping[str, NDArray[np.generic]]


def fault(name: str) -> Fault:
    return next(one for one in FAULTS if one.name == name)


@dataclass
class PlantedSession:
    session: Session
    model: OnnxModel
    fault: Fault

    def __enter__(self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.__exit__(kind, error, trace)

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

    def bind(self, inputs: Arrays) -> Callable[[], None]:
        return self.session.bind(inputs)

    def ran(self) -> RanReport:
        return self.session.ran()


@dataclass
class Planted:
    """onnxruntime's CPU provider with a planted fault."""

    fault: Fault
    name: str = "ort-cpu"
    measures_time: bool = True
    real: Runtime = field(default_factory=lambda: get_runtime("ort-cpu"))

    def available(self) -> Supported | Unsupported:
        return Supported()

    def version(self) -> str:
        return "planted 1.0"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        return self.real.supports(model)

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        return PlantedSession(self.real.load(model.tapped(), options), model, self.fault)
