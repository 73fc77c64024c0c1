"""Arms on ONNX Runtime's CUDA provider: everything on the device, captured as a graph, on a stream that we time.

The graph of a call is captured at its second run, so the first is a plain one. Never run where there is no GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import onnxruntime as ort

from .arrays import Bits
from .cuda_library import load_cuda_runtime, load_sm_clock
from .cuda_visit import CudaVisits
from .ort_arm import OrtArm, OrtPrepared
from .pipe import RefusalError
from .profile import UNKNOWN, Profile
from .visit import Turns

__all__ = ["CudaArm"]

_PROVIDER = "CUDAExecutionProvider"
# Run configuration entries. Source: onnxruntime_run_options_config_keys.h (1.32.0). Graph -1 is none.
_GRAPH = "gpu_graph_id"
_WITHOUT_WAITING = "disable_synchronize_execution_providers"
_NO_GRAPH = "-1"

_UNCAPTURED = (
    "ONNX Runtime cannot capture this model as a CUDA graph, so the time to launch each kernel is in every figure."
)


class CudaArm(OrtArm):
    """A session on the GPU.

    Raises:
        RefusalError: No GPU, no CUDA in this onnxruntime, or no node of the model that CUDA takes.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        if _PROVIDER not in ort.get_available_providers():
            raise RefusalError(f"has no {_PROVIDER} in this onnxruntime ({ort.__version__})")
        if hasattr(ort, "preload_dlls"):
            ort.preload_dlls()
        self._cuda = load_cuda_runtime()
        self._stream = self._cuda.stream()
        self._graphs = 0
        own = {"provider.user_compute_stream": str(self._stream), "provider.enable_cuda_graph": "1"}
        try:
            super().__init__({**job, "settings": {**job["settings"], **own}})
            self.warnings: list[str] = []
        except Exception as error:
            # Shape operators on the CPU, or control flow; what else it refuses, it refuses again.
            if "graph" not in str(error).lower():
                raise
            super().__init__({**job, "settings": {**job["settings"], **own, "provider.enable_cuda_graph": "0"}})
            self.warnings = [_UNCAPTURED]
        assigned = self._assigned()
        if any(assigned.values()) and not assigned.get(_PROVIDER):  # an older version does not report nodes
            raise RefusalError(f"runs no node of the model on {_PROVIDER}")
        clock = load_sm_clock(self._cuda.bus_id())
        self._visits = CudaVisits(self._cuda, self._stream, clock, flushes=job["copies"] > 1)

    def prepare(self, feeds: dict[str, Bits]) -> CudaPrepared:
        self._graphs += 1
        graph = str(self._graphs) if not self.warnings else _NO_GRAPH
        prepared = CudaPrepared(self.session, self._names, feeds, graph=graph, wait=self.wait)
        self._first = self._first or prepared
        return prepared

    def visit(self, turns: Turns, calls: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `CudaVisits.visit`."""
        return self._visits.visit(turns, calls)

    def wait(self) -> None:
        """Until what was called is done."""
        self._cuda.wait(self._stream)

    def outputs(self) -> dict[str, Bits]:
        self.wait()
        return super().outputs()

    def profile(self, calls: int) -> Profile:
        """Not measured: on a GPU the events have it."""
        return UNKNOWN


class CudaPrepared(OrtPrepared):
    """Inputs and outputs on the device, and the number of the graph that is captured for them."""

    def __init__(
        self, session: Any, names: list[str], feeds: dict[str, Bits], *, graph: str, wait: Callable[[], None]
    ) -> None:
        super().__init__(session, names, feeds, "cuda")
        self._plain = _run_options(_NO_GRAPH)
        self._captured = _run_options(graph)
        self._wait = wait

    def first_run(self) -> Callable[[], object]:
        self._session.run_with_iobinding(self.binding, self._plain)
        self._wait()
        self._fix_outputs()
        call = functools.partial(self._session.run_with_iobinding, self.binding, self._captured)
        call.prepared = self  # type: ignore[attr-defined]  # lives as long as the call
        return call


def _run_options(graph: str) -> Any:
    options = ort.RunOptions()
    options.add_run_config_entry(_GRAPH, graph)
    options.add_run_config_entry(_WITHOUT_WAITING, "1")
    return options
