"""Arms on ONNX Runtime, whichever version this environment has, on its CPU and on a GPU."""

from __future__ import annotations

from typing import Any

from .ort_arm import OrtArm, package_version
from .timing import TimingService

__all__ = ["OrtArms", "open_service"]


class OrtArms:
    """Opens arms."""

    def version(self) -> str:
        return package_version()

    def open(self, job: dict[str, Any]) -> OrtArm:
        """Create the session of a job; see `arm_job.ArmJob`."""
        if job["settings"].get("device", "cpu") == "cuda":
            from .on_cuda import CudaArm

            return CudaArm(job)
        return OrtArm(job)


def open_service(_: str) -> TimingService:
    """Time arms on ONNX Runtime."""
    return TimingService(OrtArms())
