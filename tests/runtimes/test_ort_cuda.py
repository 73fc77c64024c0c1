"""The CUDA runtime's guards, on a machine without a GPU: planted sessions stand in for ONNX Runtime's answers."""

import contextlib
import sys

import onnxruntime
import pytest

from sdpa_onnx.errors import RuntimeUnavailableError, SessionError
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, Unsupported, get_runtime
from sdpa_onnx.runtimes.engine_runtime import engine_precision, engine_settings
from sdpa_onnx.runtimes.worker.engines import ort_cuda
from sdpa_onnx.runtimes.worker.pipe import RefusalError
from tests.runtimes.models import Problem, draw, model

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
MISSING = "onnxruntime has no CUDA provider here: pip install onnxruntime-gpu, and an NVIDIA GPU"

REAL_SESSION = onnxruntime.InferenceSession

Opened = list[tuple[str, dict[str, str]]]


class Part:
    """One entry of ONNX Runtime's own record: a provider and the nodes it took."""

    def __init__(self, ep_name: str, operators: list[str]) -> None:
        self.ep_name = ep_name
        self._operators = operators

    def get_nodes(self) -> list["Part"]:
        return [Part(name, []) for name in self._operators]

    @property
    def op_type(self) -> str:
        return self.ep_name


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Pretend that CUDA is built in and a GPU is there; sessions open on the CPU, as they do when it fails to load."""
    asked: Opened = []

    def open_on_cpu(data: bytes, options: object, providers: Opened) -> object:
        asked.extend(providers)
        return REAL_SESSION(data, options, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "InferenceSession", open_on_cpu)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(ort_cuda, "cuda_device_count", lambda: 1)
    return asked


def pretend(monkeypatch: pytest.MonkeyPatch, *parts: Part) -> None:
    """Let every session say that CUDA is there and that the nodes went to these parts."""

    class Session(REAL_SESSION):
        def get_providers(self) -> list[str]:
            return [CUDA, CPU]

        def get_provider_graph_assignment_info(self) -> list[Part]:
            return list(parts)

    def open_pretender(data: bytes, options: object, providers: Opened) -> object:
        return Session(data, options, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_pretender)


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("", "CUDA or cuDNN could not be loaded"),
        ("Failed to load libX: not found\nPlease", "Failed to load libX: not found"),
    ],
)
def test_a_session_that_fell_back_is_an_error(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], printed: str, reason: str
) -> None:
    """ONNX Runtime only logs that CUDA could not be loaded; its numbers must never pass for CUDA's."""
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: sys.stdout.write(printed))
    with pytest.raises(SessionError) as caught:
        get_runtime("ort-cuda").load(model(Problem()), LoadOptions())
    assert str(caught.value) == (
        f"ort-cuda asked for {CUDA} and got {CPU}: {reason}. "
        "Install them with: pip install 'onnxruntime-gpu[cuda,cudnn]'."
    )
    assert capsys.readouterr().out == ""


def test_a_model_without_a_node_on_cuda_is_an_error(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider may be there and still take nothing."""
    pretend(monkeypatch, Part(CPU, ["Attention"]))
    with pytest.raises(SessionError) as caught:
        get_runtime("ort-cuda").load(model(Problem()), LoadOptions())
    assert str(caught.value) == (
        f"ort-cuda runs no node of the model on {CUDA}; nodes by provider: {CPU} 1. "
        "Use ort-cpu, or a form that CUDA has kernels for."
    )


def test_nodes_left_to_the_cpu_are_told(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work on the CPU is a warning with counts; operators that only compute shapes are not."""
    pretend(
        monkeypatch, Part(CUDA, ["MatMul", "MatMul"]), Part(CPU, ["Softmax", "Shape", "Gather"]), Part(CPU, ["Mul"])
    )
    with get_runtime("ort-cuda").load(model(Problem()), LoadOptions()) as session:
        report = session.ran()
    assert report.providers == {CPU: 4, CUDA: 2}
    assert report.warnings == (f"2 nodes ran on {CPU}, not on {CUDA}: Mul 1, Softmax 1.",)


@pytest.mark.parametrize(
    ("purpose", "dtype", "use_tf32", "precision"),
    [
        (Purpose.AGREEMENT, "float32", "0", "float32"),
        (Purpose.TIMING, "float32", "1", "tf32"),
        (Purpose.AGREEMENT, "float16", "0", "float16"),
        (Purpose.TIMING, "float16", "1", "float16"),
    ],
)
def test_tf32_is_off_for_agreement_and_declared_for_timing(
    opened: Opened, purpose: Purpose, dtype: str, use_tf32: str, precision: str
) -> None:
    """What a verdict is relative to is what was asked of the provider."""
    loaded, engine = model(Problem(dtype=dtype)), ort_cuda.OrtCuda()
    assert engine_precision(engine, loaded, purpose) == precision
    settings = engine_settings(engine, LoadOptions(purpose=purpose))
    with contextlib.suppress(RefusalError):  # the session is the CPU's
        engine.open({"model": loaded.to_bytes(), "folder": None, "settings": settings | {"device": "cpu"}})
    assert opened == [(CUDA, {"device_id": "0", "use_tf32": use_tf32})]


def test_without_the_provider_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU build says how to get the other one, as a value and as an error."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    monkeypatch.setattr(ort_cuda, "cuda_device_count", lambda: 1)
    assert get_runtime("ort-cuda").available() == Unsupported(MISSING)
    with pytest.raises(RuntimeUnavailableError) as caught:
        get_runtime("ort-cuda").load(model(Problem()), LoadOptions())
    assert str(caught.value) == f"Runtime 'ort-cuda' is not available: {MISSING}."


def test_without_a_gpu_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider alone is not enough."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(ort_cuda, "cuda_device_count", lambda: 0)
    assert get_runtime("ort-cuda").available() == Unsupported(MISSING)


def test_a_run_may_not_fall_back_either(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's own run() reopens a session whose provider failed on the CPU and goes on: that is off."""
    pretend(monkeypatch, Part(CUDA, ["Attention"]))
    with get_runtime("ort-cuda").load(model(Problem()), LoadOptions()) as session:
        assert session.live.opened.session._enable_fallback is False
        assert session.run(draw(Problem()))["Y"].shape == (2, 2, 5, 8)
