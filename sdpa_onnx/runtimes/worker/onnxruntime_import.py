"""Import ONNX Runtime without its telemetry. Runs nothing.

From its import on, onnxruntime 1.32.0 on Linux has a thread of its own that sends events about sessions
(telemetry_1ds.cc in its binary), beside what is timed. An environment variable keeps it from being started.
"""

from __future__ import annotations

import os
from types import ModuleType

__all__ = ["NO_TELEMETRY", "import_onnxruntime"]

# Name and value of the variable.
NO_TELEMETRY = ("ORT_DISABLE_TELEMETRY", "1")


def import_onnxruntime() -> ModuleType:
    """Import onnxruntime, or give the module that is imported already.

    The variable stays in the environment, for child processes too. One that the user has set is left as it is.

    Raises:
        ImportError: If it is not installed, or broken.
    """
    os.environ.setdefault(*NO_TELEMETRY)
    import onnxruntime

    module: ModuleType = onnxruntime
    return module
