"""Runtime `ort-cpu`: ONNX Runtime's own CPU provider, and no other.

Decides what it supports and declares its arithmetic; `ort_session` does the work.
"""

import platform

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.errors import RuntimeUnavailableError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Supported, Unsupported, not_importable
from sdpa_onnx.runtimes.onnxruntime_import import import_onnxruntime
from sdpa_onnx.runtimes.ort_session import OrtSession, OrtTarget

__all__ = ["OrtCpu", "target_of"]

# Without these there is no attention; the provider has no bfloat16 kernel of either (onnxruntime 1.32.0).
_NO_BFLOAT16 = frozenset({"Attention", "MatMul", "Softmax"})


class OrtCpu:
    """ONNX Runtime with exactly one provider, `CPUExecutionProvider`."""

    name = "ort-cpu"
    measures_time = True

    def available(self) -> Supported | Unsupported:
        """Whether onnxruntime can be imported."""
        try:
            import_onnxruntime()
        except ImportError as error:
            return not_importable(error, "onnxruntime is missing: pip install onnxruntime")
        return Supported()

    def version(self) -> str:
        """Such as "onnxruntime 1.32.0"."""
        return f"onnxruntime {import_onnxruntime().__version__}"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """Refuse bfloat16 where the provider has no kernel for it."""
        for node in model.ir.graph.all_nodes():
            is_bfloat16 = any(value is not None and value.dtype is ir.DataType.BFLOAT16 for value in node.inputs)
            if node.op_type in _NO_BFLOAT16 and is_bfloat16:
                return Unsupported(f"onnxruntime's CPU provider has no bfloat16 kernel for {node.op_type}")
        return Supported()

    def load(self, model: OnnxModel, options: LoadOptions) -> OrtSession:
        """Load a model; see `Runtime.load`."""
        match self.available():
            case Unsupported(reason):
                raise RuntimeUnavailableError(f"Runtime '{self.name}' is not available: {reason}.")
            case Supported():
                pass
        return OrtSession(model, target_of(model), options)


def target_of(model: OnnxModel) -> OrtTarget:
    """What a session of this runtime is opened for."""
    return OrtTarget(
        runtime=OrtCpu.name,
        provider="CPUExecutionProvider",
        provider_options={},
        device="cpu",
        precision=_precision(model.facts.attention_dtype),
    )


def _precision(dtype: Dtype) -> str:
    """The declared arithmetic.

    On x86-64 float16 is cast to float32 for every product and sum: the output
    is off by 1.03 units of float16 roundoff at 4096 keys (measured, onnxruntime
    1.32.0, Attention and MatMul-Softmax-MatMul). On 64-bit ARM, MLAS has
    kernels that add in float16; there the weaker word is declared, unmeasured.
    """
    if dtype is Dtype.FLOAT16 and platform.machine().lower() in ("aarch64", "arm64"):
        return "float16-accumulation"
    return dtype.value
