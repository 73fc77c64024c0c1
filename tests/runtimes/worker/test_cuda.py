"""An arm on a GPU, without one: an onnxruntime of these tests, a clock that calls move on, events that read it."""

import ctypes
from collections.abc import Callable

import pytest

from sdpa_onnx.runtimes.worker import cuda_library
from sdpa_onnx.runtimes.worker.cuda_library import CudaRuntime, SmClock, load_cuda_runtime, load_sm_clock
from sdpa_onnx.runtimes.worker.cuda_visit import CudaVisits
from sdpa_onnx.runtimes.worker.engines import onnxruntime as ort_cpu
from sdpa_onnx.runtimes.worker.engines import ort_cuda
from sdpa_onnx.runtimes.worker.pipe import RefusalError
from sdpa_onnx.runtimes.worker.visit import Turns
from tests.runtimes.worker import faulty_onnxruntime

_CACHE_BYTES = 50_000_000


class FakeCuda:
    """libcudart: `milliseconds` is what the GPU's clock shows; emptying the cache takes 5 ms."""

    def __init__(self, *, devices: int = 1, failing: str = "") -> None:
        self.milliseconds = 0.0
        self.log: list[str] = []
        self._devices = devices
        self._failing = failing
        self._events: dict[int, float] = {}

    def __getattribute__(self, name: str) -> object:
        found = object.__getattribute__(self, name)
        if name.startswith("cuda"):
            return self._status(name, found)
        return found

    def _status(self, name: str, call: Callable[..., None]) -> Callable[..., int]:
        def status(*arguments: object) -> int:
            self.log.append(name)
            if name == self._failing:
                return 700
            call(*arguments)
            return 0

        return status

    def cudaGetDeviceCount(self, count: object) -> None:  # noqa: N802 - CUDA's own names from here on
        count._obj.value = self._devices  # type: ignore[attr-defined]

    def cudaStreamCreate(self, stream: object) -> None:  # noqa: N802
        stream._obj.value = 2**40  # type: ignore[attr-defined]

    def cudaStreamSynchronize(self, stream: ctypes.c_void_p) -> None:  # noqa: N802
        assert stream.value == 2**40

    def cudaEventCreate(self, event: object) -> None:  # noqa: N802
        self._events[len(self._events) + 1] = -1.0
        event._obj.value = len(self._events)  # type: ignore[attr-defined]

    def cudaEventRecord(self, event: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:  # noqa: N802
        assert stream.value == 2**40
        self._events[event.value or 0] = self.milliseconds

    def cudaEventSynchronize(self, event: ctypes.c_void_p) -> None:  # noqa: N802
        assert self._events[event.value or 0] >= 0

    def cudaEventElapsedTime(self, elapsed: object, start: ctypes.c_void_p, end: ctypes.c_void_p) -> None:  # noqa: N802
        elapsed._obj.value = self._events[end.value or 0] - self._events[start.value or 0]  # type: ignore[attr-defined]

    def cudaMalloc(self, memory: object, size: ctypes.c_size_t) -> None:  # noqa: N802
        assert size.value == 2 * _CACHE_BYTES
        memory._obj.value = 2**41  # type: ignore[attr-defined]

    def cudaMemsetAsync(self, memory: ctypes.c_void_p, value: object, size: ctypes.c_size_t, stream: object) -> None:  # noqa: N802
        assert (memory.value, size.value) == (2**41, 2 * _CACHE_BYTES)
        self.milliseconds += 5.0

    def cudaDeviceGetAttribute(self, value: object, attribute: ctypes.c_int, device: ctypes.c_int) -> None:  # noqa: N802
        assert (attribute.value, device.value) == (38, 0)
        value._obj.value = _CACHE_BYTES  # type: ignore[attr-defined]

    def cudaDeviceGetPCIBusId(self, text: object, size: ctypes.c_int, device: ctypes.c_int) -> None:  # noqa: N802
        text.value = b"0000:65:00.0"  # type: ignore[attr-defined]


class FakeManagement:
    """libnvidia-ml of one GPU, or of none."""

    def __init__(self, *, status: int = 0) -> None:
        self._status = status

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self._status

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: bytes, device: object) -> int:  # noqa: N802
        return 0 if bus_id == b"0000:65:00.0" else 6

    def nvmlDeviceGetClockInfo(self, device: object, kind: ctypes.c_int, clock: object) -> int:  # noqa: N802
        assert kind.value == 1
        clock._obj.value = 1980  # type: ignore[attr-defined]
        return 0


def visits(fake: FakeCuda, *, flushes: bool = False) -> CudaVisits:
    cuda = CudaRuntime(fake)
    return CudaVisits(cuda, cuda.stream(), SmClock(FakeManagement(), cuda.bus_id()), flushes=flushes)


def calls_of(fake: FakeCuda, *milliseconds: float) -> tuple[Turns, list[int]]:
    """Calls that take these times in turn, and the order in which they were made."""
    made: list[int] = []

    def call(index: int) -> None:
        made.append(index)
        fake.milliseconds += milliseconds[index]

    return Turns([lambda index=index: call(index) for index in range(len(milliseconds))]), made  # type: ignore[misc]


@pytest.mark.parametrize("milliseconds", [0.02, 9.9, 10.1])
@pytest.mark.parametrize(("calls", "samples", "made"), [(1, 1, 1), (9, 1, 9), (10, 1, 10), (25, 2, 20)])
def test_a_sample_is_ten_calls_or_the_whole_visit(milliseconds: float, calls: int, samples: int, made: int) -> None:
    """The mean over its calls is the time of one; their number does not depend on how long they take."""
    fake = FakeCuda()
    turns, done = calls_of(fake, milliseconds)
    counters, arrays = visits(fake).visit(turns, calls)
    assert arrays["wall_ns"].tolist() == pytest.approx([milliseconds * 1e6] * samples, rel=1e-4)
    assert len(arrays["cpu_ns"]) == samples
    assert counters == {"switches": 0, "faults": 0, "clock_mhz": 1980.0}
    assert len(done) == made


def test_a_cold_cache_is_not_timed() -> None:
    """The cache is emptied before every call, and only the calls are between events."""
    fake = FakeCuda()
    turns, made = calls_of(fake, 0.5, 1.5)
    _, arrays = visits(fake, flushes=True).visit(turns, 10)
    assert arrays["wall_ns"].tolist() == pytest.approx([1.0e6], rel=1e-4)
    assert fake.log.count("cudaMemsetAsync") == len(made) == 10
    assert made[:4] == [0, 1, 0, 1]


def test_a_warm_sample_has_one_pair_of_events() -> None:
    """Nothing stands between the calls of a sample."""
    fake = FakeCuda()
    turns, _ = calls_of(fake, 0.1)
    visits(fake).visit(turns, 10)
    assert fake.log.count("cudaEventRecord") == 2
    assert "cudaMemsetAsync" not in fake.log


def test_errors_of_cuda_are_told() -> None:
    """The call and its number are named."""
    fake = FakeCuda(failing="cudaEventRecord")
    turns, _ = calls_of(fake, 0.1)
    with pytest.raises(RefusalError) as caught:
        visits(fake).visit(turns, 10)
    assert str(caught.value) == "failed on the GPU: cudaEventRecord gave CUDA error 700"


@pytest.mark.parametrize("management", [None, FakeManagement(status=999)], ids=["no library", "no driver"])
def test_a_clock_that_is_not_told(management: FakeManagement | None) -> None:
    """Without NVIDIA's library, or without its driver, the clock is unknown."""
    assert SmClock(management, b"0000:65:00.0").mhz() == -1.0
    assert SmClock(FakeManagement(), b"another").mhz() == -1.0


def test_no_gpu_and_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is named."""

    def none(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(cuda_library.ctypes, "CDLL", none)
    with pytest.raises(RefusalError) as caught:
        load_cuda_runtime()
    assert str(caught.value) == "found no CUDA runtime library (libcudart)"
    assert load_sm_clock(b"").mhz() == -1.0
    monkeypatch.setattr(cuda_library.ctypes, "CDLL", lambda _: FakeCuda(devices=0))
    with pytest.raises(RefusalError) as caught:
        load_cuda_runtime()
    assert str(caught.value) == "found no NVIDIA GPU"
    assert CudaRuntime(FakeCuda(failing="cudaGetDeviceCount")).devices() == 0


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Both modules see the onnxruntime of these tests, with CUDA in it."""
    fake = FakeCuda()
    for module in (ort_cuda, ort_cpu):
        monkeypatch.setattr(module, "import_onnxruntime", lambda: faulty_onnxruntime)
    monkeypatch.setattr(faulty_onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(ort_cuda, "load_cuda_runtime", lambda: CudaRuntime(fake))
    monkeypatch.setattr(ort_cuda, "load_sm_clock", lambda bus_id: SmClock(FakeManagement(), bus_id))
    return fake


def cuda_arm(*, copies: int = 1, **entries: str) -> ort_cuda.CudaArm:
    settings = {"device": "cuda", "provider": "CUDAExecutionProvider", "provider.use_tf32": "1"}
    settings |= {"session.record_ep_graph_assignment_info": "1"}
    settings |= {f"session.{name.replace('_', ' ')}": value for name, value in entries.items()}
    arm = ort_cuda.OrtCuda().open({"model": "m.onnx", "folder": None, "settings": settings, "copies": copies})
    assert isinstance(arm, ort_cuda.CudaArm)
    return arm


def test_an_arm_is_captured_on_our_stream(on_gpu: FakeCuda) -> None:
    """The first run captures nothing; later ones replay a graph of their own for each set of inputs, not waiting."""
    arm = cuda_arm(copies=2)
    assert arm.session.provider_options == {
        "use_tf32": "1",
        "user_compute_stream": str(2**40),
        "enable_cuda_graph": "1",
    }
    calls = [arm.prepare({}).first_run() for _ in range(2)]
    for call in calls:
        call()
    assert [run["gpu_graph_id"] for run in arm.session.runs] == ["-1", "-1", "1", "2"]
    assert all(run["disable_synchronize_execution_providers"] == "1" for run in arm.session.runs)
    assert (arm.device, arm.warnings) == ("cuda", [])
    counters, _ = arm.visit(Turns(calls), 10)
    assert counters["clock_mhz"] == 1980.0
    assert "cudaMemsetAsync" in on_gpu.log


def test_an_arm_that_cannot_be_captured(on_gpu: FakeCuda) -> None:
    """It runs plainly, and says that its times hold the launches."""
    arm = cuda_arm(fault="no capture")
    arm.prepare({}).first_run()()
    assert [run["gpu_graph_id"] for run in arm.session.runs] == ["-1", "-1"]
    assert arm.session.provider_options["enable_cuda_graph"] == "0"
    assert arm.warnings == [
        "ONNX Runtime cannot capture this model as a CUDA graph, so the time to launch each kernel is in every figure."
    ]


def test_an_arm_that_runs_elsewhere(on_gpu: FakeCuda) -> None:
    """A model whose nodes all went to another provider is refused."""
    with pytest.raises(RefusalError) as caught:
        cuda_arm(taken_by="CPUExecutionProvider")
    assert str(caught.value) == (
        "runs no node of the model on CUDAExecutionProvider; nodes by provider: CPUExecutionProvider 1. "
        "Use ort-cpu, or a form that CUDA has kernels for"
    )
