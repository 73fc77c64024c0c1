"""OpenVINO's CPU device, with its own choice of arithmetic made visible. GPU and NPU devices are not used.

OpenVINO casts what does not fit, runs again on the last request's array where one is missing, and gives views that the
next run overwrites: every set of inputs has a request of its own, and every result is a copy.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import BFLOAT16, Bits
from ..openvino_import import import_openvino
from ..pipe import RefusalError

__all__ = ["OpenVino"]

_ONNX_TYPES = {
    "f32": 1,
    "u8": 2,
    "i8": 3,
    "u16": 4,
    "i16": 5,
    "i32": 6,
    "i64": 7,
    "boolean": 9,
    "f16": 10,
    "f64": 11,
    "u32": 12,
    "u64": 13,
    "bf16": BFLOAT16,
}


# Places in OpenVINO's source, headings and advertisements around the sentence that says what is wrong.
_NOISE = re.compile(r"^(?:Exception from \S+:|FrontEnd API failed with \w+:|Summary:|To facilitate .*)$")
_UNREAD = re.compile(r'^Unable to read the model: "[^"]*"\.?')
_CHECK = re.compile(r"^Check '(?P<condition>.*)' failed at \S+?:?$")


class OpenVino:
    """OpenVINO on the CPU."""

    name = "openvino"
    measures_time = True
    takes_options = True
    checks_sizes = False
    install = "pip install 'sdpa-onnx[openvino]'"

    def version(self) -> str:
        """Such as "openvino 2026.4.1"; OpenVINO's own word has a build number behind it."""
        return f"openvino {import_openvino().__version__.split('-')[0]}"

    def settings(self, *, threads: int, purpose: str, optimise: bool) -> dict[str, Any]:
        """OpenVINO's properties.

        Left alone, OpenVINO computes float32 models in bfloat16 on CPUs that have
        it, and answers the hint f16 with bfloat16 too where there is no float16
        (2026.4.1): f32 is the one hint that is never weaker than the model's type.
        """
        found: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": threads,
        }
        if purpose == "agreement":
            found.update({"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"})
        if not optimise:
            # Its own compiler of fused loops; the other passes cannot be turned off from outside.
            found["SNIPPETS_MODE"] = "DISABLE"
        return found

    def explain(self, text: str) -> str:
        r"""The sentence in an error text: no places in its source or of the model, one line, no final stop.

        Example:
            >>> text = "Exception from src/inference/src/cpp/core.cpp:105:\nUnable to read the model.\n\n"
            >>> OpenVino().explain(text)
            'Unable to read the model'
        """
        lines = [line.strip() for line in text.splitlines()]
        sentences = [
            _UNREAD.sub("Unable to read the model.", line)
            for line in lines
            if line and not _NOISE.match(line) and not _CHECK.match(line)
        ]
        checks = [_CHECK.match(line) for line in lines]
        conditions = [found["condition"] for found in checks if found]
        return " ".join(sentences or [f"not true: {condition}" for condition in conditions[-1:]]).rstrip(".")

    def open(self, job: dict[str, Any]) -> _Compiled:
        """Compile the model of a job."""
        return _Compiled(job)


class _Prepared:
    """A request of its own, whose inputs lie in the given arrays."""

    def __init__(self, compiled: Any, names: list[str], feeds: dict[str, Bits], ports: dict[str, int]) -> None:
        ov = import_openvino()
        self.request = compiled.create_infer_request()
        self._names = names
        # The request holds bare pointers into these.
        self._kept = []
        for name, (array, _) in feeds.items():
            port = ports.get(name)
            if port is not None:
                element = compiled.inputs[port].get_element_type()
                laid_out = np.ascontiguousarray(array)
                tensor = ov.Tensor(laid_out, ov.Shape(array.shape), element)
                self.request.set_input_tensor(port, tensor)
                self._kept.append((laid_out, tensor))

    def first_run(self) -> Callable[[], object]:
        """Run once; give the call that runs again."""
        call = functools.partial(self.request.infer, share_outputs=True)
        call()
        call.prepared = self  # type: ignore[attr-defined]  # lives as long as the call
        return call

    def outputs(self) -> dict[str, Bits]:
        """What the last run wrote, by output name."""
        return {name: _copied(self.request.get_output_tensor(index)) for index, name in enumerate(self._names)}


class _Compiled:
    def __init__(self, job: dict[str, Any]) -> None:
        core = import_openvino().Core()
        with _standing_in(job["folder"]):
            self._compiled = core.compile_model(core.read_model(_source(job)), "CPU", job["settings"])
        self._outputs: list[str] = job["outputs"]
        self._defaults = job["defaults"]
        self._inputs = _ports(self._compiled, job["inputs"])
        if len(self._compiled.outputs) != len(self._outputs):
            kept = len(self._compiled.outputs)
            raise RefusalError(f"cannot load the model: of {len(self._outputs)} outputs it kept {kept}")

    def prepare(self, feeds: dict[str, Bits]) -> _Prepared:
        """Lend the arrays to a request; nothing runs. The importer drops inputs that no node reads."""
        for name in feeds:
            if name not in self._inputs and name in self._defaults:
                raise RefusalError(f"holds input '{name}' at its default and takes no array for it")
        missing = sorted(self._inputs.keys() - feeds.keys())
        if missing:
            raise RefusalError(f"got no array for input '{missing[0]}'")
        return _Prepared(self._compiled, self._outputs, feeds, self._inputs)

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
        return {
            "execution": nodes,
            "hint": str(self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()),
            "threads": int(self._compiled.get_property("INFERENCE_NUM_THREADS")),
        }

    def close(self) -> None:
        """Free what is compiled."""
        self._compiled = None


def _source(job: dict[str, Any]) -> str | bytes:
    """The model as bytes where it has data files: OpenVINO follows no links out of a model's folder."""
    model: str | bytes = job["model"]
    return Path(model).read_bytes() if job["folder"] is not None and isinstance(model, str) else model


@contextlib.contextmanager
def _standing_in(folder: str | None) -> Iterator[None]:
    """For a model given as bytes OpenVINO looks for the data files in the current folder."""
    before = Path.cwd()
    try:
        os.chdir(folder or before)
        yield
    finally:
        os.chdir(before)


def _ports(compiled: Any, names: list[str]) -> dict[str, int]:
    """Ports by input name; by position where the importer lost a name and every input is there."""
    ports = {name: index for index, port in enumerate(compiled.inputs) for name in port.get_names() if name in names}
    lost = [index for index in range(len(compiled.inputs)) if index not in ports.values()]
    if lost and len(compiled.inputs) == len(names):
        return {name: index for index, name in enumerate(names)}
    if lost:
        raise RefusalError(f"cannot load the model: its importer lost the names of {len(lost)} inputs")
    return ports


def _copied(tensor: Any) -> Bits:
    onnx_type = _ONNX_TYPES[tensor.get_element_type().get_type_name()]
    data = tensor.data
    return np.array(data.view(np.uint16) if onnx_type == BFLOAT16 else data), onnx_type
