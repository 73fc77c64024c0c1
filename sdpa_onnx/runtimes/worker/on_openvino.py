"""Arms on OpenVINO's CPU device, whichever version this environment has. Writes no error sentences.

The twin of `runtimes/openvino_session.py`, which explains what OpenVINO does with arrays.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import Bits
from .profile import UNKNOWN, Profile
from .timing import TimingService

# Where its telemetry is missing OpenVINO sends nothing; see runtimes/openvino_import.py. None is Python's own mark.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
import openvino as ov  # noqa: E402 - the telemetry first

__all__ = ["OpenVinoArms", "open_service"]

_BFLOAT16, _FLOAT16 = 16, 10  # onnx.TensorProto
_ONNX_TYPES = {
    "f32": 1,
    "u8": 2,
    "i8": 3,
    "u16": 4,
    "i16": 5,
    "i32": 6,
    "i64": 7,
    "boolean": 9,
    "f16": _FLOAT16,
    "f64": 11,
    "u32": 12,
    "u64": 13,
    "bf16": _BFLOAT16,
}


class OpenVinoArms:
    """Opens arms."""

    def version(self) -> str:
        return str(ov.__version__).split("-")[0]  # a build stands behind the hyphen

    def open(self, job: dict[str, Any]) -> _Arm:
        """Compile the model of a job; see `arm_job.ArmJob`."""
        return _Arm(job)


class _Prepared:
    """A request of its own, whose inputs lie in the given arrays."""

    def __init__(self, compiled: Any, feeds: dict[str, Bits], ports: dict[str, int]) -> None:
        self.request = compiled.create_infer_request()
        # The request holds bare pointers into these.
        self._kept = []
        for name, (array, _) in feeds.items():
            port = ports.get(name)
            if port is not None:
                element = compiled.inputs[port].get_element_type()
                tensor = ov.Tensor(array, ov.Shape(array.shape), element)
                self.request.set_input_tensor(port, tensor)
                self._kept.append((array, tensor))

    def first_run(self) -> Callable[[], object]:
        """Run once; give the call that runs again."""
        call = functools.partial(self.request.infer, share_outputs=True)
        call()
        call.prepared = self  # type: ignore[attr-defined]  # lives as long as the call
        return call


class _Arm:
    device = "cpu"

    def __init__(self, job: dict[str, Any]) -> None:
        core = ov.Core()
        source: str | bytes = job["model"]
        if job["folder"] is not None:
            # OpenVINO looks for the data files of a model given as bytes in the current folder.
            source = Path(job["model"]).read_bytes()
            os.chdir(job["folder"])
        self._compiled = core.compile_model(core.read_model(source), "CPU", job["settings"])
        self._first: _Prepared | None = None

    def version(self) -> str:
        return f"openvino {OpenVinoArms().version()}"

    def prepare(self, feeds: dict[str, Bits]) -> _Prepared:
        """Lend the arrays to a request; nothing runs."""
        prepared = _Prepared(self._compiled, feeds, self._ports(list(feeds)))
        self._first = self._first or prepared
        return prepared

    def wait(self) -> None:
        """Until what was called is done: it is."""

    def outputs(self) -> dict[str, Bits]:
        """What the bound run wrote, by output name."""
        found = {}
        for index, port in enumerate(self._compiled.outputs):
            tensor = self._first.request.get_output_tensor(index)  # type: ignore[union-attr]
            onnx_type = _ONNX_TYPES[tensor.get_element_type().get_type_name()]
            data = tensor.data
            bits = data.view(np.uint16) if onnx_type == _BFLOAT16 else data
            found[_name(port)] = (np.array(bits), onnx_type)
        return found

    def profile(self, calls: int) -> Profile:
        """Not measured."""
        return UNKNOWN

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        """The nodes of the execution graph, the precision and the threads that OpenVINO took."""
        nodes = []
        for node in self._compiled.get_runtime_model().get_ordered_ops():
            notes = node.get_rt_info()
            sources = [port.get_source_output().get_node().get_friendly_name() for port in node.inputs()]
            nodes.append(
                {
                    "name": node.get_friendly_name(),
                    "layer": notes["layerType"].astype(str),
                    "originals": notes["originalLayersNames"].astype(str),
                    "sources": sources,
                }
            )
        report = {
            "nodes": nodes,
            "hint": str(self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()),
            "threads": int(self._compiled.get_property("INFERENCE_NUM_THREADS")),
        }
        return {"assigned": {}, "optimised": None, "report": report}

    def close(self) -> None:
        """Free what is compiled."""
        self._first = self._compiled = None

    def _ports(self, names: list[str]) -> dict[str, int]:
        inputs = self._compiled.inputs
        ports = {name: index for index, port in enumerate(inputs) for name in port.get_names() if name in names}
        # The importer may lose names; arrays come in the order of the graph's inputs.
        return ports if len(ports) == len(inputs) or len(inputs) != len(names) else dict(zip(names, range(len(names))))


def _name(port: Any) -> str:
    """The output's name in ONNX; a tensor that several values became has all their names."""
    names = port.get_names()
    own = port.get_node().get_friendly_name().partition("/sink_port_")[0]
    return str(own if own in names or not names else min(names))


def open_service(_: str) -> TimingService:
    """Time arms on OpenVINO."""
    return TimingService(OpenVinoArms())
