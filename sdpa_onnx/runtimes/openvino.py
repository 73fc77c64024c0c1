"""Runtime `openvino`: OpenVINO's CPU device, with its own choice of arithmetic made visible.

Decides what is there; `openvino_session` does the work, `openvino_ran` says
what really runs. GPU and NPU devices are not used.
"""

from sdpa_onnx.errors import RuntimeUnavailableError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Supported, Unsupported, not_importable
from sdpa_onnx.runtimes.openvino_import import import_openvino
from sdpa_onnx.runtimes.openvino_session import RUNTIME, OpenVinoSession

__all__ = ["OpenVino"]


class OpenVino:
    """OpenVINO on the CPU."""

    name = RUNTIME
    measures_time = True

    def available(self) -> Supported | Unsupported:
        """Whether openvino can be imported."""
        try:
            import_openvino()
        except ImportError as error:
            missing = "openvino is missing: install extra openvino (pip install 'sdpa-onnx[openvino]')"
            return not_importable(error, missing)
        return Supported()

    def version(self) -> str:
        """Such as "openvino 2026.4.1"; OpenVINO's own word has a build number behind it."""
        return f"openvino {import_openvino().__version__.split('-')[0]}"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """Every model is tried: only the importer of OpenVINO reports what it cannot translate, at load."""
        return Supported()

    def load(self, model: OnnxModel, options: LoadOptions) -> OpenVinoSession:
        """Load a model; see `Runtime.load`."""
        match self.available():
            case Unsupported(reason):
                raise RuntimeUnavailableError(f"Runtime '{self.name}' is not available: {reason}.")
            case Supported():
                pass
        return OpenVinoSession(model, options)
