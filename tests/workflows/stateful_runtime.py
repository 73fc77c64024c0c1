"""A real runtime whose sessions carry something from one run to the next, in one way or another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, get_runtime
from tests.workflows.wrapped_runtime import WrappedRuntime, WrappedSession

Arrays = Mapping[str, NDArray[np.generic]]
Outputs = dict[str, NDArray[np.generic]]
Run = Callable[[Arrays], Outputs]
# One run of a session: (the right session, inputs, what the session remembers) -> outputs.
Fault = Callable[[Run, Arrays, dict[str, object]], Outputs]


@dataclass
class StatefulSession(WrappedSession):
    session: Session
    fault: Fault
    memory: dict[str, object] = field(default_factory=dict)

    def run(self, inputs: Arrays) -> Outputs:
        return self.fault(self.session.run, inputs, self.memory)


@dataclass
class Stateful(WrappedRuntime):
    """onnxruntime's CPU provider with a fault of state."""

    fault: Fault
    name: str = "ort-cpu"
    measures_time: bool = True
    real: Runtime = field(default_factory=lambda: get_runtime("ort-cpu"))

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        return StatefulSession(self.real.load(model, options), self.fault)


def first_key_count(run: Run, inputs: Arrays, memory: dict[str, object]) -> Outputs:
    """A first run with one key compiles a kernel without a softmax: later runs sum the values."""
    outputs = run(inputs)
    memory.setdefault("one key", inputs["K"].shape[2] == 1)
    if not memory["one key"]:
        return outputs
    repeats = inputs["Q"].shape[1] // inputs["V"].shape[1]
    summed = np.repeat(inputs["V"].sum(axis=2, keepdims=True), repeats, axis=1)
    return {**outputs, "Y": np.broadcast_to(summed, outputs["Y"].shape).copy()}


def buffer_of_shape(run: Run, inputs: Arrays, memory: dict[str, object]) -> Outputs:
    """The output of the first run of each shape comes back in every later run of that shape."""
    return {name: memory.setdefault(f"{name}{array.shape}", array) for name, array in run(inputs).items()}  # type: ignore[misc]


def previous_mask(run: Run, inputs: Arrays, memory: dict[str, object]) -> Outputs:
    """The mask of the first run is used wherever its shape fits."""
    if "attn_mask" not in inputs:
        return run(inputs)
    mask = memory.setdefault(f"{inputs['attn_mask'].shape}", inputs["attn_mask"])
    return run({**inputs, "attn_mask": mask})  # type: ignore[dict-item]


def output_tail(run: Run, inputs: Arrays, memory: dict[str, object]) -> Outputs:
    """The last element of a smaller output is what the larger one before it left there."""
    outputs = {name: array.copy() for name, array in run(inputs).items()}
    for name, array in outputs.items():
        old = memory.get(name)
        if isinstance(old, np.ndarray) and old.size > array.size > 0:
            array.reshape(-1)[-1] = old.reshape(-1)[array.size - 1]
        memory[name] = array
    return outputs


def scale_of_first_rank(run: Run, inputs: Arrays, memory: dict[str, object]) -> Outputs:
    """Kernels are kept by rank: the one of the first run with one query is used for all."""
    one = memory.setdefault(f"{inputs['Q'].ndim}", inputs["Q"].shape[2] == 1)
    outputs = run(inputs)
    if not one or inputs["Q"].shape[2] == 1:
        return outputs
    return {**outputs, "Y": np.broadcast_to(outputs["Y"][:, :, :1], outputs["Y"].shape).copy()}


def after_large(run: Run, inputs: Arrays, memory: dict[str, object]) -> Outputs:
    """Memory of a larger run is not cleared: a smaller one with the same batch adds a part of it."""
    outputs = run(inputs)
    was = memory.get("keys")
    memory["keys"] = inputs["K"].shape[2]
    if isinstance(was, int) and was > inputs["K"].shape[2] > 1:
        return {name: array * np.float32(1.001) for name, array in outputs.items()}
    return outputs


def previous_past(run: Run, inputs: Arrays, memory: dict[str, object]) -> Outputs:
    """The cache of the first run is used wherever its shape fits."""
    kept = {name: memory.setdefault(f"{name}{array.shape}", array) for name, array in inputs.items() if "past" in name}
    return run({**inputs, **kept})  # type: ignore[dict-item]


def after_empty(run: Run, inputs: Arrays, memory: dict[str, object]) -> Outputs:
    """A run without queries leaves a flag behind: all later outputs are doubled."""
    outputs = run(inputs)
    if memory.get("empty"):
        outputs = {name: 2 * array for name, array in outputs.items()}
    if not inputs["Q"].size:
        memory["empty"] = True
    return outputs


def shared_output(run: Run, inputs: Arrays, memory: dict[str, object]) -> Outputs:
    """Every run returns views of one buffer."""
    outputs = run(inputs)
    buffer = memory.setdefault("buffer", np.zeros(1 << 20, np.float32))
    assert isinstance(buffer, np.ndarray)
    shared: Outputs = {}
    for name, array in outputs.items():
        shared[name] = buffer[: array.size].reshape(array.shape)
        shared[name][...] = array
    return shared
