"""The few calls of the CUDA runtime and of NVIDIA's management library that timing needs, through ctypes.

Both libraries are handed in, so that tests can give others. Knows no ONNX Runtime.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .pipe import RefusalError

__all__ = ["CudaRuntime", "SmClock", "load_cuda_runtime", "load_sm_clock"]

# Newest first: what ONNX Runtime has loaded already is found by its name.
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
_MANAGEMENT = "libnvidia-ml.so.1"

_L2_CACHE_SIZE = 38  # cudaDevAttrL2CacheSize, driver_types.h
_CLOCK_SM = 1  # NVML_CLOCK_SM, nvml.h
_BUS_ID_BYTES = 32  # NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE, nvml.h


class CudaRuntime:
    """Streams, events and a little memory of device 0.

    Every method raises RefusalError where CUDA gives an error.

    Args:
        library: What ctypes gives for libcudart.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def devices(self) -> int:
        """How many GPUs there are; 0 also where CUDA cannot report it."""
        count = ctypes.c_int(0)
        return count.value if self._library.cudaGetDeviceCount(ctypes.byref(count)) == 0 else 0

    def stream(self) -> int:
        """A new stream, as a number."""
        stream = ctypes.c_void_p()
        self._check("cudaStreamCreate", ctypes.byref(stream))
        return stream.value or 0

    def wait(self, stream: int) -> None:
        """Until all that a stream was given is done."""
        self._check("cudaStreamSynchronize", ctypes.c_void_p(stream))

    def event(self) -> Any:
        event = ctypes.c_void_p()
        self._check("cudaEventCreate", ctypes.byref(event))
        return event

    def record(self, event: Any, stream: int) -> None:
        """Have the GPU note the time when it gets there."""
        self._check("cudaEventRecord", event, ctypes.c_void_p(stream))

    def seconds(self, start: Any, end: Any) -> float:
        """Wait for the end event; time between two."""
        self._check("cudaEventSynchronize", end)
        milliseconds = ctypes.c_float()
        self._check("cudaEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value * 1e-3

    def memory(self, size_bytes: int) -> Any:
        """Memory on the device, for as long as the process lives."""
        memory = ctypes.c_void_p()
        self._check("cudaMalloc", ctypes.byref(memory), ctypes.c_size_t(size_bytes))
        return memory

    def overwrite(self, memory: Any, size_bytes: int, stream: int) -> None:
        self._check("cudaMemsetAsync", memory, ctypes.c_int(0), ctypes.c_size_t(size_bytes), ctypes.c_void_p(stream))

    def cache_bytes(self) -> int:
        """Size of the second-level cache."""
        size = ctypes.c_int(0)
        self._check("cudaDeviceGetAttribute", ctypes.byref(size), ctypes.c_int(_L2_CACHE_SIZE), ctypes.c_int(0))
        return size.value

    def bus_id(self) -> bytes:
        """Where device 0 sits: other libraries count GPUs in another order."""
        text = ctypes.create_string_buffer(_BUS_ID_BYTES)
        self._check("cudaDeviceGetPCIBusId", text, ctypes.c_int(_BUS_ID_BYTES), ctypes.c_int(0))
        return text.value

    def _check(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise RefusalError(f"failed on the GPU: {name} gave CUDA error {status}")


class SmClock:
    """The clock of the GPU's multiprocessors.

    Args:
        library: What ctypes gives for libnvidia-ml; None = there is none.
        bus_id: Which GPU.
    """

    def __init__(self, library: Any, bus_id: bytes) -> None:
        self._library = library
        self._device = ctypes.c_void_p()
        if library is not None and (
            library.nvmlInit_v2() != 0
            or library.nvmlDeviceGetHandleByPciBusId_v2(bus_id, ctypes.byref(self._device)) != 0
        ):
            self._library = None

    def mhz(self) -> float:
        """Now; -1 where it is not reported."""
        clock = ctypes.c_uint(0)
        if (
            self._library is None
            or self._library.nvmlDeviceGetClockInfo(self._device, ctypes.c_int(_CLOCK_SM), ctypes.byref(clock)) != 0
        ):
            return -1.0
        return float(clock.value)


def load_cuda_runtime() -> CudaRuntime:
    """The library that is there.

    Raises:
        RefusalError: If there is none, or no GPU.
    """
    for name in _RUNTIMES:
        try:
            runtime = CudaRuntime(ctypes.CDLL(name))
        except OSError:
            continue
        if runtime.devices() == 0:
            raise RefusalError("found no NVIDIA GPU")
        return runtime
    raise RefusalError("found no CUDA runtime library (libcudart)")


def load_sm_clock(bus_id: bytes) -> SmClock:
    """The clock of a GPU, read from the driver's library where there is one."""
    try:
        return SmClock(ctypes.CDLL(_MANAGEMENT), bus_id)
    except OSError:
        return SmClock(None, bus_id)
