"""nxrt: a runtime in Rust for the CPU, with the interface of ONNX Runtime."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from ..arrays import Bits
from ..model_file import model_file
from ..node_attributes import attributes_of, has_windows
from ..plain_arrays import bfloat16_array, in_order

__all__ = ["Nxrt"]

# The pool of threads, which is made once a process, by the first run (rayon).
_THREADS = "RAYON_NUM_THREADS"
# Where a text says nothing about the fault: the model's path, a node with all its values, and advice.
_BEFORE = re.compile(
    r"failed to load ONNX model from .*?: (?=\w)"
    r"|internal executor error: node .*?\) failed: (?:kernel execution failed: )?"
)
_AFTER = re.compile(r" \u2014 add a claim.*|; consulted execution providers.*|\. To fix: .*")


class Nxrt:
    """Opens models in nxrt."""

    name = "nxrt"
    install = "pip install 'sdpa-onnx[nxrt]'"
    measures_time = True
    # Of this process: the number that its pool was made with.
    pool_threads = 0

    def version(self) -> str:
        from importlib.metadata import version

        import nxrt  # noqa: F401 - whether it can be imported

        return f"nxrt {version('nxrt')}"

    def explain(self, text: str) -> str:
        """The fault, without the path of the model, the values of the node and advice."""
        line = (text.strip().splitlines() or [""])[0]
        return _AFTER.sub("", _BEFORE.sub("", line)).rstrip(".")

    def refuses(self, nodes: list[Any]) -> str | None:
        """What 0.1.0.dev6 ignores and does not report."""
        if has_windows(nodes):
            return "ignores the windows of Attention"
        if any(given.get("scale", 0) < 0 for given in attributes_of(nodes, "MultiHeadAttention", "com.microsoft")):
            return "ignores the scale of MultiHeadAttention where it is negative"
        return None

    def open(self, job: dict[str, Any]) -> _Opened:
        """Load the model."""
        if not Nxrt.pool_threads:
            Nxrt.pool_threads = job["threads"]
            os.environ[_THREADS] = str(job["threads"])
        return _Opened(job, Nxrt.pool_threads)


class _Opened:
    device = "cpu"

    def __init__(self, job: dict[str, Any], threads: int) -> None:
        import nxrt

        with model_file(job) as path:
            self._session = nxrt.InferenceSession(path)
        self._threads = threads
        self.warnings = []
        if threads != job["threads"]:
            self.warnings.append(f"nxrt keeps the {threads} threads of the first model in this process.")

    def run(self, feeds: dict[str, Bits]) -> dict[str, Bits | np.ndarray[Any, Any]]:
        """Run once."""
        arrays = {name: bfloat16_array(bits) for name, bits in feeds.items()}
        names = self._session.input_names
        found = self._session.run(None, dict(zip(names, in_order(arrays, names))))
        return dict(zip(self._session.output_names, found))

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        """The threads of the pool; nxrt does not report nodes, and its only provider is the CPU."""
        return {"threads": self._threads}

    def close(self) -> None:
        """Free the session."""
        self._session = None
