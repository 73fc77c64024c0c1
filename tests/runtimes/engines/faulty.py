"""A right engine written in numpy, and one planted fault each: what the contract has to find."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from sdpa_onnx.runtimes.worker.pipe import RefusalError

__all__ = ["FAULTS"]

_OPERATORS = ("MatMul", "Mul", "Softmax", "Transpose")
_NUMPY = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}


class Opened:
    device = "cpu"

    def __init__(self, job: dict[str, Any]) -> None:
        given = job["model"] if isinstance(job["model"], bytes) else Path(job["model"]).read_bytes()
        try:
            proto = onnx.load_from_string(given)
        except Exception as error:
            raise ValueError(f"not a model\nat {__file__}:1") from error
        if proto.graph.input[0].type.tensor_type.elem_type not in _NUMPY:
            raise RefusalError("takes no bfloat16")
        if unknown := [node.op_type for node in proto.graph.node if node.op_type not in _OPERATORS]:
            raise RefusalError(f"has no operator {unknown[0]}")
        self.job = job

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        query, key, value = (np.asarray(feeds[name][0]) for name in self.job["inputs"][:3])
        scores = query.astype(np.float64) @ key.swapaxes(-1, -2).astype(np.float64) / np.sqrt(8.0)
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        weights /= weights.sum(-1, keepdims=True)
        return {self.job["outputs"][0]: (weights @ value).astype(query.dtype)}

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        return {"assigned": {"numpy": {}}, "threads": self.job["threads"]}

    def close(self) -> None: ...


class Right:
    """Keeps the contract."""

    name = "right"
    install = "pip install 'sdpa-onnx[right]'"
    measures_time = True
    opens: type[Opened] = Opened

    def version(self) -> str:
        return f"numpy {np.__version__}"

    def explain(self, text: str) -> str:
        return text.partition("\n")[0]

    def open(self, job: dict[str, Any]) -> Opened:
        return self.opens(job)


class _Stale(Opened):
    """Returns its first result for ever."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        self.first = getattr(self, "first", None) or super().run(feeds)
        return self.first


class _Missing(Opened):
    """Takes the last run's arrays for what is not given."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        self.kept = {**getattr(self, "kept", {}), **feeds}
        return super().run(self.kept)


class _View(Opened):
    """Overwrites what it returned before."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        (found,) = super().run(feeds).values()
        self.buffer = getattr(self, "buffer", found)
        if self.buffer.shape == found.shape:
            self.buffer[...] = found
            found = self.buffer
        return {self.job["outputs"][0]: found}


class _Printed(Opened):
    """Prints why it fails and returns nothing of the right size."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        (found,) = super().run(feeds).values()
        if 0 in feeds[self.job["inputs"][1]][0].shape:
            return {self.job["outputs"][0]: found[:0]}
        return {self.job["outputs"][0]: found}


class _Loud(Opened):
    """Prints to the stdout of the process."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        os.write(1, b"running\n")
        return super().run(feeds)


class _Wide(Opened):
    """Returns float64."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        return {name: array.astype(np.float64) for name, array in super().run(feeds).items()}


class _Short(Opened):
    """Computes float32 as float16."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        halved = {name: (array.astype(np.float16), number) for name, (array, number) in feeds.items()}
        return {name: array.astype(np.float32) for name, array in super().run(halved).items()}


class _First(Opened):
    """Keeps the sizes of its first run."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        shape = feeds[self.job["inputs"][0]][0].shape
        self.shape = getattr(self, "shape", shape)
        (found,) = super().run(feeds).values()
        return {self.job["outputs"][0]: np.resize(found, self.shape)}


class _Aborts(Opened):
    """Ends the process where an axis has length zero."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        if any(0 in array.shape for array, _ in feeds.values()):
            os.abort()
        return super().run(feeds)


class _Renames(Opened):
    """Knows inputs by what its file format leaves of their names."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        for name in feeds:
            name.encode("ascii")
        return super().run(feeds)


class _Leaves(Opened):
    """Leaves a temporary folder behind."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        tempfile.mkdtemp()


class _Blind(Opened):
    """Does not look for data files."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        return {name: array * 2 if self.job["folder"] else array for name, array in super().run(feeds).items()}


class _Boasts(Opened):
    """Reports one thread whatever it is given."""

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        return {"threads": 1}


class _Starts(Opened):
    """Starts a process."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        subprocess.run(["/bin/true"], check=True)
        return super().run(feeds)


class _Secret(Opened):
    """Reports a field that nobody reads."""

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        return {"nodes": 5}


class Talks(Right):
    """Explains with the place in a source."""

    def explain(self, text: str) -> str:
        return text.replace("\n", " ")


class Nameless(Right):
    """Has no number in its version."""

    def version(self) -> str:
        return "numpy"


def _plant(opens: type[Opened]) -> type[Right]:
    planted = type(opens.__name__.strip("_"), (Right,), {"opens": opens, "__doc__": opens.__doc__})
    globals()[planted.__name__] = planted  # a child finds it by name
    return planted


# Fault -> the checks of the contract that must find it.
FAULTS: dict[type[Right], tuple[str, ...]] = {
    _plant(_Stale): ("right_at_two_sizes", "second_run_is_its_own"),
    _plant(_Missing): ("missing_input_is_an_error",),
    _plant(_View): ("outputs_are_the_callers",),
    _plant(_Printed): ("zero_lengths",),
    _plant(_Loud): ("prints_nothing",),
    _plant(_Wide): ("right_at_two_sizes", "float16"),
    _plant(_Short): ("right_at_two_sizes",),
    _plant(_First): ("right_at_two_sizes",),
    _plant(_Aborts): ("zero_lengths",),
    _plant(_Renames): ("odd_names",),
    _plant(_Leaves): ("leaves_no_files",),
    _plant(_Blind): ("external_data",),
    _plant(_Boasts): ("threads",),
    _plant(_Starts): ("sends_nothing",),
    _plant(_Secret): ("ran_fields",),
    Talks: ("explains_in_a_line",),
    Nameless: ("version",),
}
