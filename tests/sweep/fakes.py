"""Runtimes that misbehave, for the runner and the workflows, registered together with a real one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes import base
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Supported, Unsupported

Arrays = Mapping[str, NDArray[np.generic]]
Outputs = dict[str, NDArray[np.generic]]
# Makes the outputs that a faulty runtime gives: (inputs, right outputs) -> outputs.
Fault = Callable[[Arrays, Outputs], Outputs]

_GET_RUNTIME = base.get_runtime
_PLACES = (
    "sdpa_onnx.sweep.runner",
    "sdpa_onnx.sweep.job_carrier",
    "sdpa_onnx.sweep.run",
    "sdpa_onnx.workflows.verify.verify_model",
    "sdpa_onnx.workflows.verify.verify_file",
    "sdpa_onnx.workflows.export.export_target",
    "sdpa_onnx.runtimes.torch_compiled",
    "sdpa_onnx.workflows.check.available_runtimes",
)


@dataclass
class FaultySession:
    """A right session whose outputs are changed on the way out."""

    session: Session
    fault: Fault

    def __enter__(self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.__exit__(kind, error, trace)

    def run(self, inputs: Arrays) -> Outputs:
        return self.fault(inputs, self.session.run(inputs))

    def bind(self, inputs: Arrays) -> Callable[[], None]:
        return self.session.bind(inputs)

    def ran(self) -> RanReport:
        return self.session.ran()


@dataclass
class Faulty:
    """onnxruntime's CPU provider with a planted fault; `name` is the name in the records."""

    fault: Fault = field(default=lambda _, outputs: outputs)
    name: str = "ort-cpu"
    measures_time: bool = True
    real: Runtime = field(default_factory=lambda: _GET_RUNTIME("ort-cpu"))

    def available(self) -> Supported | Unsupported:
        return Supported()

    def version(self) -> str:
        return "fake 1.0"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        return Supported()

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        return FaultySession(self.real.load(model, options), self.fault)


class Absent(Faulty):
    """A runtime whose package is missing."""

    def available(self) -> Supported | Unsupported:
        return Unsupported("fake is missing: pip install fake")


class Refusing(Faulty):
    """A runtime that does not support the model."""

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        return Unsupported("fake has no such kernel")


@dataclass
class Throwing(Faulty):
    """A runtime that throws something of its own when it loads."""

    error: BaseException = field(default_factory=lambda: ZeroDivisionError("boom"))

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        raise self.error


def plant(monkeypatch: pytest.MonkeyPatch, *fakes: Faulty) -> None:
    """Make `get_runtime` return these by name, in every module that looks up runtimes."""
    by_name = {fake.name: fake for fake in fakes}

    def find(name: str) -> Runtime:
        return by_name.get(name) or _GET_RUNTIME(name)

    for place in _PLACES:
        monkeypatch.setattr(f"{place}.get_runtime", find)
    monkeypatch.setattr("sdpa_onnx.sweep.run.usable_workers", lambda _: 0)  # what is planted is in this process only
