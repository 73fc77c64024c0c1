"""The settings with which a worker runs an arm as the runtime itself would for timing."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.arm_job import Adapter
from sdpa_onnx.runtimes.base import LoadOptions, Purpose

if TYPE_CHECKING:
    from sdpa_onnx.runtimes.ort_session import OrtTarget

__all__ = ["adapter_of", "arm_settings", "ort_target"]

_ADAPTERS = {"ort-cpu": Adapter.ONNXRUNTIME, "ort-cuda": Adapter.ONNXRUNTIME, "openvino": Adapter.OPENVINO}
# Several workers stand ready on the same cores: threads that spin for work would take them from the arm that is timed.
# Source: METHOD B.4.
_CO_RESIDENT = {"session.intra_op.allow_spinning": "0"}
# These decide what an arm is, and are chosen by other means.
_FIXED = frozenset({"provider", "device", "intra_op_num_threads", "inter_op_num_threads", "INFERENCE_NUM_THREADS"})


def adapter_of(runtime: str) -> Adapter:
    """How a worker loads models of a runtime."""
    return _ADAPTERS.get(runtime, Adapter.SDPA_ONNX)


def arm_settings(
    runtime: str, model: OnnxModel, *, threads: int, options: Mapping[str, str] | None = None
) -> dict[str, object]:
    """The settings of an `ArmJob`: the runtime's own for timing, and over them those that the user gives.

    Args:
        runtime: Registered name.
        model: Read for its element type only.
        threads: Inside one operator.
        options: The user's. For ONNX Runtime an attribute of SessionOptions, a session configuration entry or
            "provider.NAME"; for OpenVINO a property. The worker refuses a name that it does not know.

    Raises:
        PlanError: Options for another runtime, or one that decides the device or the threads.
    """
    options = options or {}
    fixed = sorted(_FIXED & options.keys())
    if fixed:
        raise PlanError(f"'{fixed[0]}' is no option of an arm.", hint="Name the runtime and the threads instead.")
    load = LoadOptions(threads=threads, purpose=Purpose.TIMING)
    target = ort_target(runtime, model, load)
    if target is not None:
        from sdpa_onnx.runtimes.ort_session import session_settings

        return {**session_settings(target, load), **_CO_RESIDENT, **options}
    if runtime == "openvino":
        from sdpa_onnx.runtimes.openvino_session import configuration

        return {**configuration(load), **options}
    if options:
        raise PlanError(
            f"Runtime '{runtime}' takes no options.", hint="Options are for ort-cpu, ort-cuda and openvino."
        )
    return {}


def ort_target(runtime: str, model: OnnxModel, load: LoadOptions) -> "OrtTarget | None":
    """What a session of ONNX Runtime is opened for; None for another runtime."""
    from sdpa_onnx.runtimes import ort_cpu, ort_cuda

    match runtime:
        case "ort-cpu":
            return ort_cpu.target_of(model)
        case "ort-cuda":
            return ort_cuda.target_of(model, load)
        case _:
            return None
