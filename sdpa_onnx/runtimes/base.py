"""The interface of a runtime: load a model, run it, report what really ran; and the registry.

A runtime registers under the entry-point group `sdpa_onnx.runtimes`: the entry
point loads a class (or callable) that takes no argument and gives an `engine.Engine` or a `Runtime`.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import entry_points
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import RuntimeNotFoundError, RuntimeUnavailableError
from sdpa_onnx.runtimes.engine import is_engine
from sdpa_onnx.runtimes.import_failure import import_failure, is_missing

if TYPE_CHECKING:
    from sdpa_onnx.graph.model import OnnxModel

__all__ = [
    "ENTRY_POINT_GROUP",
    "LoadOptions",
    "Purpose",
    "RanReport",
    "Runtime",
    "Session",
    "Supported",
    "Unsupported",
    "get_runtime",
    "not_importable",
    "runtime_names",
]

ENTRY_POINT_GROUP = "sdpa_onnx.runtimes"

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Supported:
    """Yes."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """No, and why; a finding, never an exception."""

    reason: str


class Purpose(StrEnum):
    """What a session is for.

    AGREEMENT asks for the exact arithmetic of the declared type (TF32 off);
    TIMING for what a user would ship.
    """

    AGREEMENT = "agreement"
    TIMING = "timing"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load a model.

    Args:
        threads: Threads inside one operator; the same for every arm of a comparison.
        purpose: See `Purpose`.
        optimise: False turns off what the runtime can turn off of its graph optimisation.
        reports: `Session.ran` will be called, so a runtime that would load the model once more for it reads it now.
    """

    threads: int = 1
    purpose: Purpose = Purpose.AGREEMENT
    optimise: bool = True
    reports: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RanReport:
    """What really ran, read from the loaded session, not assumed.

    Args:
        providers: Nodes per execution provider (or kernel family) after optimisation.
        node_counts: Nodes per operator type after optimisation.
        expanded: Operators of the model that the runtime replaced by their
            function body: operator -> nodes that came out of it.
        fused: Operators that run and do not stand in the model nor in a body that was
            expanded: operator -> nodes.
        precision: The declared arithmetic, a key of `core.attention.precision.PRECISIONS`.
        warnings: A disagreement between what was requested and what ran.
    """

    providers: Mapping[str, int]
    node_counts: Mapping[str, int]
    expanded: Mapping[str, int] = field(default_factory=dict)
    fused: Mapping[str, int] = field(default_factory=dict)
    precision: str
    warnings: tuple[str, ...] = ()


class Session(Protocol):
    """A loaded model, ready to run; a context manager that frees it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """Run once; fresh output arrays by output name.

        Raises:
            SessionError: If the runtime refuses or fails; the cause is kept.
        """
        ...

    def bind(self, inputs: Arrays) -> Callable[[], None]:
        """Pre-bind inputs and outputs; the returned call runs once and copies nothing."""
        ...

    def ran(self) -> RanReport:
        """Say what really runs for this model."""
        ...


class Runtime(Protocol):
    """A program that executes models."""

    name: str
    measures_time: bool
    """False for a runtime that is right but slow by design (agreement only)."""

    def available(self) -> Supported | Unsupported:
        """Whether the package and the device are there, and how to get them if not."""
        ...

    def version(self) -> str:
        """Version of the package that runs, e.g. "onnxruntime 1.32.0"."""
        ...

    def supports(self, model: "OnnxModel") -> Supported | Unsupported:
        """Whether this model can run here, answered before anything is loaded."""
        ...

    def load(self, model: "OnnxModel", options: LoadOptions) -> Session:
        """Load a model.

        Raises:
            RuntimeUnavailableError: If the package or the device is missing.
            SessionError: If the runtime refuses the model; the cause is kept.
        """
        ...


def runtime_names() -> tuple[str, ...]:
    """Names of every registered runtime, available or not, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)}))


def get_runtime(name: str) -> Runtime:
    """Find a runtime by name.

    Raises:
        RuntimeNotFoundError: Unknown name; the nearest known one is offered.
        RuntimeUnavailableError: Two packages register the same name, or the plug-in cannot be imported.
    """
    points = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == name]
    if not points:
        raise RuntimeNotFoundError(f"There is no runtime '{name}'.", hint=_offer(name))
    if len({point.value for point in points}) > 1:
        owners = ", ".join(sorted(point.value for point in points))
        raise RuntimeUnavailableError(
            f"Runtime '{name}' is registered twice: {owners}.", hint="Uninstall one of the packages."
        )
    try:
        factory = points[0].load()
    except ImportError as error:
        raise RuntimeUnavailableError(f"Runtime '{name}' cannot be imported: {error}.") from error
    made = factory()
    if is_engine(made):
        from sdpa_onnx.runtimes.engine_runtime import EngineRuntime

        return EngineRuntime(made)
    runtime: Runtime = made
    return runtime


def not_importable(error: ImportError, missing: str) -> Unsupported:
    """Why a runtime is unavailable: its package is missing, or is there and cannot be imported.

    Args:
        error: Raised by the import of its package.
        missing: The reason where it is missing, with the command that installs it.
    """
    return Unsupported(missing if is_missing(error) else import_failure(error).rstrip("."))


def _offer(name: str) -> str:
    near = difflib.get_close_matches(name, runtime_names(), n=1, cutoff=0.6)
    listed = "`sdpa-onnx runtimes` lists them."
    return f"Did you mean '{near[0]}'? {listed}" if near else listed
