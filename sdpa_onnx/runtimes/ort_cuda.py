"""Runtime `ort-cuda`: ONNX Runtime's CUDA provider, never its silent substitute.

ONNX Runtime gives a CPU session, and only logs, when CUDA cannot be loaded
(seen in onnxruntime-gpu 1.31.1): every load here checks who took the nodes.
"""

import contextlib
import ctypes
import io
import sys

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.errors import RuntimeUnavailableError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, Supported, Unsupported, not_importable
from sdpa_onnx.runtimes.onnxruntime_import import import_onnxruntime
from sdpa_onnx.runtimes.ort_ran import assigned_nodes
from sdpa_onnx.runtimes.ort_session import OrtSession, OrtTarget

__all__ = ["OrtCuda", "cuda_device_count", "target_of"]

_PROVIDER = "CUDAExecutionProvider"
_MISSING = "onnxruntime has no CUDA provider here: pip install onnxruntime-gpu, and an NVIDIA GPU"


class OrtCuda:
    """ONNX Runtime with `CUDAExecutionProvider` on GPU 0; only shape operators may run on the CPU beside it."""

    name = "ort-cuda"
    measures_time = True

    def available(self) -> Supported | Unsupported:
        """Whether onnxruntime was built with CUDA and the driver has a GPU."""
        try:
            ort = import_onnxruntime()
        except ImportError as error:
            return not_importable(error, _MISSING)
        if _PROVIDER not in ort.get_available_providers() or cuda_device_count() == 0:
            return Unsupported(_MISSING)
        return Supported()

    def version(self) -> str:
        """Such as "onnxruntime 1.31.1"."""
        return f"onnxruntime {import_onnxruntime().__version__}"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """Every model is tried: operators without a CUDA kernel are reported by `ran`, or refused at load."""
        return Supported()

    def load(self, model: OnnxModel, options: LoadOptions) -> OrtSession:
        """Load a model; see `Runtime.load`.

        Raises:
            SessionError: Also if CUDA took no node of the model.
        """
        match self.available():
            case Unsupported(reason):
                raise RuntimeUnavailableError(f"Runtime '{self.name}' is not available: {reason}.")
            case Supported():
                pass
        complaint = _preload_libraries()
        session = OrtSession(model, target_of(model, options), options)
        _require_cuda(session, complaint)
        return session


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


def _preload_libraries() -> str:
    """Load CUDA and cuDNN from the packages beside onnxruntime-gpu; the first complaint, or "".

    onnxruntime prints what it does not find on stdout, which is ours for results.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        import_onnxruntime().preload_dlls()
    return next(iter(printed.getvalue().splitlines()), "").rstrip(".")


def target_of(model: OnnxModel, options: LoadOptions) -> OrtTarget:
    """What a session of this runtime is opened for."""
    # TF32 rounds float32 operands to 11 bits: what a user ships, but no float32 arithmetic to judge.
    is_timing = options.purpose is Purpose.TIMING
    dtype = model.facts.attention_dtype
    return OrtTarget(
        runtime=OrtCuda.name,
        provider=_PROVIDER,
        provider_options={"device_id": "0", "use_tf32": "1" if is_timing else "0"},
        device="cuda",
        precision="tf32" if is_timing and dtype is Dtype.FLOAT32 else dtype.value,
    )


def _require_cuda(session: OrtSession, complaint: str) -> None:
    providers = session.live.get_providers()
    if _PROVIDER not in providers:
        reason = complaint or "CUDA or cuDNN could not be loaded"
        raise SessionError(
            f"{OrtCuda.name} asked for {_PROVIDER} and got {', '.join(providers)}: {reason}.",
            hint="Install them with: pip install 'onnxruntime-gpu[cuda,cudnn]'.",
        )
    assigned = assigned_nodes(session.live)
    if not assigned.get(_PROVIDER):
        took = ", ".join(f"{name} {operators.total()}" for name, operators in sorted(assigned.items())) or "none"
        raise SessionError(
            f"{OrtCuda.name} runs no node of the model on {_PROVIDER}; nodes by provider: {took}.",
            hint="Use ort-cpu, or a form that CUDA has kernels for.",
        )
