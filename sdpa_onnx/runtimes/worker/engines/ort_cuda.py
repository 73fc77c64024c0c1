"""ONNX Runtime's CUDA provider on GPU 0, never its silent substitute.

ONNX Runtime gives a CPU session, and only logs, when CUDA cannot be loaded (seen in onnxruntime-gpu 1.31.1): every load
here checks who took the nodes. What is timed lies on the device and is captured as a graph, on a stream that we time;
the graph of a call is captured at its second run, so the first is a plain one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import sys
from collections.abc import Callable
from typing import Any

from ..arrays import Bits
from ..cuda_library import load_cuda_runtime, load_sm_clock
from ..cuda_visit import CudaVisits
from ..onnxruntime_import import import_onnxruntime
from ..pipe import RefusalError
from ..profile import UNKNOWN, Profile
from ..visit import Turns
from .onnxruntime import OrtArm, OrtCpu, OrtPrepared, plain_settings

__all__ = ["CudaArm", "OrtCuda", "cuda_device_count"]

_PROVIDER = "CUDAExecutionProvider"
_MISSING = "onnxruntime has no CUDA provider here: pip install onnxruntime-gpu, and an NVIDIA GPU"
# Run configuration entries. Source: onnxruntime_run_options_config_keys.h (1.32.0). Graph -1 is none.
_GRAPH = "gpu_graph_id"
_WITHOUT_WAITING = "disable_synchronize_execution_providers"
_NO_GRAPH = "-1"

_UNCAPTURED = (
    "ONNX Runtime cannot capture this model as a CUDA graph, so the time to launch each kernel is in every figure."
)


class OrtCuda(OrtCpu):
    """ONNX Runtime with `CUDAExecutionProvider`; only shape operators may run on the CPU beside it."""

    name = "ort-cuda"
    install = "pip install onnxruntime-gpu, and an NVIDIA GPU"

    def unavailable(self) -> str | None:
        """Whether onnxruntime was built with CUDA and the driver has a GPU."""
        if _PROVIDER not in import_onnxruntime().get_available_providers() or cuda_device_count() == 0:
            return _MISSING
        return None

    def settings(self, *, threads: int, purpose: str, optimise: bool) -> dict[str, Any]:
        """TF32 rounds float32 operands to 11 bits: what a user ships, but no float32 arithmetic to judge."""
        is_timing = purpose == "timing"
        plain = plain_settings(threads=threads, optimise=optimise, provider=_PROVIDER)
        own = {"provider.device_id": "0", "provider.use_tf32": "1" if is_timing else "0"}
        return {**plain, **own, "device": "cuda" if is_timing else "cpu"}

    def refuses(self, nodes: list[Any]) -> str | None:
        """Every model is tried: operators without a CUDA kernel are reported by `ran`, or refused at load."""
        return None

    def precision(self, dtype: str, purpose: str) -> str:
        """The declared arithmetic."""
        return "tf32" if purpose == "timing" and dtype == "float32" else dtype

    def open(self, job: dict[str, Any]) -> OrtArm:
        """Create the session of a job: for timing on the device, for judging with arrays of the host."""
        return CudaArm(job) if job["settings"]["device"] == "cuda" else _HostArm(job)


def cuda_device_count() -> int:
    """GPUs that the NVIDIA driver lists; 0 without a driver."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


class _HostArm(OrtArm):
    """A session on the GPU whose inputs and outputs pass through the memory of the host.

    Raises:
        RefusalError: No CUDA in this onnxruntime, it cannot be loaded, or it takes no node of the model.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._complaint = _preload_libraries()
        super().__init__(job)
        self._require_nodes("Use ort-cpu, or a form that CUDA has kernels for")

    def _lost(self) -> str:
        reason = self._complaint or "CUDA or cuDNN could not be loaded"
        return f": {reason}. Install them with: pip install 'onnxruntime-gpu[cuda,cudnn]'"


class CudaArm(_HostArm):
    """A session on the GPU with everything on the device.

    Raises:
        RefusalError: No GPU too.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        _preload_libraries()
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
        clock = load_sm_clock(self._cuda.bus_id())
        self._visits = CudaVisits(self._cuda, self._stream, clock, flushes=job["copies"] > 1)

    def prepare(self, feeds: dict[str, Bits]) -> CudaPrepared:
        self._graphs += 1
        graph = str(self._graphs) if not self.warnings else _NO_GRAPH
        return CudaPrepared(self.session, self._names, feeds, graph=graph, wait=self.wait)

    def visit(self, turns: Turns, calls: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `CudaVisits.visit`."""
        return self._visits.visit(turns, calls)

    def wait(self) -> None:
        """Until what was called is done."""
        self._cuda.wait(self._stream)

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

    def outputs(self) -> dict[str, Bits]:
        self._wait()
        return super().outputs()


def _preload_libraries() -> str:
    """Load CUDA and cuDNN from the packages beside onnxruntime-gpu; the first complaint, or "".

    onnxruntime prints what it does not find on stdout, which is ours for results.

    Raises:
        RefusalError: No CUDA in this onnxruntime.
    """
    ort = import_onnxruntime()
    if _PROVIDER not in ort.get_available_providers():
        raise RefusalError(f"has no {_PROVIDER} in this onnxruntime ({ort.__version__})")
    printed = io.StringIO()
    if hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(printed):
            ort.preload_dlls()
    return next(iter(printed.getvalue().splitlines()), "").rstrip(".")


def _run_options(graph: str) -> Any:
    options = import_onnxruntime().RunOptions()
    options.add_run_config_entry(_GRAPH, graph)
    options.add_run_config_entry(_WITHOUT_WAITING, "1")
    return options
