"""What machine and which versions a run was made on, read once and stored with it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["PACKAGES", "THREAD_VARIABLES", "environment", "versions"]

PACKAGES = ("sdpa-onnx", "torch", "onnx", "onnxruntime", "onnx-ir", "onnxscript", "openvino", "numpy")

# Thread counts that libraries read when they are imported; pinned before that.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def environment() -> dict[str, str]:
    """Processor, cores, system, Python, and the thread variables as set."""
    facts = {
        "cpu": _cpu_name(),
        "cores": str(os.cpu_count()),
        "cores_usable": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "os": platform.platform(terse=True),
        "python": platform.python_version(),
    }
    return facts | {name: os.environ.get(name, "") for name in THREAD_VARIABLES}


def versions() -> dict[str, str]:
    """Versions of the packages that decide results; "" where one is missing."""
    return {name: _version(name) for name in PACKAGES}


def load_average() -> float:
    """Processes that wanted a core over the last minute, or -1 where the system does not report it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
