"""A runtime with one planted fault, to test that a check finds it.

It loads and runs a real runtime and changes the outputs only. It is not registered and not timed.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.faults.fault_kind import Fault
from sdpa_onnx.errors import ModelError
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Supported, Unsupported
from sdpa_onnx.workflows.verify.plant_faults import plant_in

if TYPE_CHECKING:
    from sdpa_onnx.graph.model import OnnxModel
    from sdpa_onnx.graph.site import AttentionSite

__all__ = ["FaultyRuntime"]

Array = NDArray[np.generic]


class FaultyRuntime:
    """A runtime with one planted fault; see `runtimes.base.Runtime`.

    Args:
        runtime: The real runtime, whose name it keeps.
        fault: The fault of every run.
        seed: Seed of faults that use random numbers.
    """

    measures_time = False

    def __init__(self, runtime: Runtime, fault: Fault, *, seed: int = 0) -> None:
        self.name = runtime.name
        self._runtime, self._fault, self._seed = runtime, fault, seed

    def available(self) -> Supported | Unsupported:
        """See `Runtime.available`."""
        return self._runtime.available()

    def version(self) -> str:
        """See `Runtime.version`."""
        return self._runtime.version()

    def supports(self, model: "OnnxModel") -> Supported | Unsupported:
        """See `Runtime.supports`."""
        return self._runtime.supports(model)

    def load(self, model: "OnnxModel", options: LoadOptions) -> "PlantedSession":
        """Load a bare attention; see `Runtime.load`.

        Raises:
            ModelError: If the model is more than one attention.
        """
        if not model.is_bare_attention:
            raise ModelError(
                "A fault can be planted only in a model of one attention.",
                hint="Export the attention alone.",
            )
        session = self._runtime.load(model, options)
        return PlantedSession(session, model.sites[0], self._fault, seed=self._seed)


class PlantedSession:
    """A loaded model whose outputs have the fault; see `runtimes.base.Session`."""

    def __init__(self, session: Session, site: "AttentionSite", fault: Fault, *, seed: int) -> None:
        self._session, self._site, self._fault, self._seed = session, site, fault, seed

    def __enter__(self) -> Self:
        self._session.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.__exit__(kind, error, trace)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the real session, then plant the fault; see `Session.run`."""
        return plant_in(self._site, self._fault, inputs, self._session.run(inputs), seed=self._seed)

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], None]:
        """Bind the real session, without the fault; see `Session.bind`."""
        return self._session.bind(inputs)

    def ran(self) -> RanReport:
        """The report of the real session; see `Session.ran`."""
        return self._session.ran()
