"""What all runtimes that wrap a real one have in common: everything but the change that a test is about."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import RanReport, Runtime, Session, Supported, Unsupported

__all__ = ["WrappedRuntime", "WrappedSession"]


class WrappedSession:
    """A session around a real one; a subclass has `run`."""

    session: Session

    def __enter__(self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.__exit__(kind, error, trace)

    def bind(self, inputs: Mapping[str, NDArray[np.generic]]) -> Callable[[], None]:
        return self.session.bind(inputs)

    def ran(self) -> RanReport:
        return self.session.ran()


class WrappedRuntime:
    """A runtime around a real one; a subclass has `load`."""

    real: Runtime

    def available(self) -> Supported | Unsupported:
        return Supported()

    def version(self) -> str:
        return f"{type(self).__name__.lower()} 1.0"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        return self.real.supports(model)
