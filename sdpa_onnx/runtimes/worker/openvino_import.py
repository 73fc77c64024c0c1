"""Import OpenVINO without its telemetry. Runs nothing.

`import openvino` sends an event to a web analytics service, starts a process
for it and writes a client id into the home folder, unless a CI variable or a
file in the home folder forbids it (openvino 2026.4.1, openvino-telemetry
2025.2.0). Where the package openvino_telemetry is missing, OpenVINO itself
falls back to a stub that sends nothing: it is made to be missing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

__all__ = ["import_openvino"]

_TELEMETRY = "openvino_telemetry"


def import_openvino() -> ModuleType:
    """Import openvino, or give the module that is imported already.

    Raises:
        ImportError: If it is not installed, or broken.
    """
    kept = sys.modules.get(_TELEMETRY)
    if "openvino" not in sys.modules:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # Python's own mark for "cannot be imported"
    try:
        return import_module("openvino")
    finally:
        if kept is not None:
            sys.modules[_TELEMETRY] = kept
        elif sys.modules.get(_TELEMETRY) is None:
            sys.modules.pop(_TELEMETRY, None)
