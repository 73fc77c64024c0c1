"""Turn what a runtime's adapter raises unexpectedly into an error of that runtime, in our own process.

In a worker process such an exception ends the worker; here it must not end a run with other runtimes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import SdpaOnnxError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Supported, Unsupported
from sdpa_onnx.workflows.isolate.step_limit import begin_step

__all__ = ["FencedRuntime", "ProcessDiedError"]

Array = NDArray[np.generic]


class ProcessDiedError(SessionError):
    """The runtime crashed its process, did not answer in time, or raised an error that is no refusal."""


class FencedRuntime:
    """A runtime in this process whose unexpected exceptions are `ProcessDiedError`.

    Args:
        real: The runtime.
    """

    def __init__(self, real: Runtime) -> None:
        self.real = real
        self.name = real.name
        self.measures_time = real.measures_time

    def available(self) -> Supported | Unsupported:
        """The answer of the runtime."""
        return self.real.available()

    def version(self) -> str:
        """The version of the runtime."""
        return self.real.version()

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """The answer of the runtime; an exception is one too."""
        try:
            return self.real.supports(model)
        except SdpaOnnxError:
            raise
        except Exception as error:  # noqa: BLE001  # foreign code
            return Unsupported(_raised(self.name, error))

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        """Load a model.

        Raises:
            SessionError: If the runtime refuses the model.
            ProcessDiedError: If its adapter raises anything else.
        """
        with _fence(self.name):
            return _FencedSession(self.name, self.real.load(model, options))


class _FencedSession:
    """A loaded model; see `runtimes.base.Session`."""

    def __init__(self, name: str, real: Session) -> None:
        self._name = name
        self._real = real

    def __enter__(self) -> Self:
        with _fence(self._name):
            self._real = self._real.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _fence(self._name):
            self._real.__exit__(kind, error, trace)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with _fence(self._name):
            return self._real.run(inputs)

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], None]:
        with _fence(self._name):
            return self._real.bind(inputs)

    def ran(self) -> RanReport:
        with _fence(self._name):
            return self._real.ran()


@contextmanager
def _fence(name: str) -> Iterator[None]:
    begin_step()
    try:
        yield
    except SdpaOnnxError:
        raise
    except Exception as error:  # foreign code
        raise ProcessDiedError(f"{_raised(name, error)}.") from error


def _raised(name: str, error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{name} raised an error that is no refusal: {type(error).__name__}{f': {text}' if text else ''}"
