"""MNN on the CPU. A model is converted once to MNN's format; its axes stay dynamic.

The package's command lines `mnnconvert` and `mnnquant` are never run nor imported: they install a package by pip and
send what is converted, with an id of the machine, to a log service (MNN 3.6.1, MNN/tools/utils/log.py). The C function
behind them opens no socket and starts no process (strace). MNN prints why it fails and raises nothing, so its prints
are caught.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import Bits
from ..model_file import model_file
from ..pipe import RefusalError
from ..plain_arrays import in_order, plain_arrays
from ..prints import Prints

__all__ = ["Mnn"]

# What is given to MNN as what; it has no type for truth values, and computes with integers of 32 bits.
_TYPES = {"float32": "float", "float16": "float", "int32": "int", "int64": "int", "bool": "int"}
_GIVEN = {"float": np.float32, "int": np.int32}
_REASON = re.compile(r"Not Support|[Ee]rror|[Ff]ail|Not Exist|[Cc]an't|[Ii]nvalid")
_PLACE = re.compile(r"^\[[\d:]+\] \S*:\d+: |(?: in|:|for|==>)? */\S+|^\[ERROR\] ")
_WIDEST = np.iinfo(np.int32)
# Seen in 3.6.1.
_NO_OPERATORS = frozenset({"Attention", "GroupQueryAttention", "MultiHeadAttention"})


class Mnn:
    """Opens models in MNN."""

    name = "mnn"
    install = "pip install 'sdpa-onnx[mnn]'"
    measures_time = True

    def version(self) -> str:
        return f"MNN {_packages()[0].version()}"

    def settings(self, *, threads: int, purpose: str, optimise: bool) -> dict[str, Any]:
        """MNN's own default precision is "normal", which may round to float16 where the processor has it."""
        return {
            "backend": "CPU",
            "precision": "high" if purpose == "agreement" else "normal",
            "numThread": threads,
        }

    def refuses(self, nodes: list[Any]) -> str | None:
        """What its converter takes and computes as something else, and attention in one node, which it has not."""
        for node in nodes:
            if node["op_type"] in _NO_OPERATORS:
                return f"has no operator {node['op_type']}"
            for dtype in ("bfloat16", "float64"):
                if dtype in node["types"]:
                    return f"has no {dtype}"
        return None

    def explain(self, text: str) -> str:
        """The first line of what was printed that says what is wrong."""
        lines = [line for line in text.splitlines() if _REASON.search(line)] or text.strip().splitlines() or [""]
        return " ".join(_PLACE.sub("", lines[0]).split()).rstrip(".:")

    def open(self, job: dict[str, Any]) -> _Opened:
        """Convert and load."""
        return _Opened(job)


class _Opened:
    device = "cpu"

    def __init__(self, job: dict[str, Any]) -> None:
        self._inputs, self._outputs = job["inputs"], job["outputs"]
        self._mnn, convert = _packages()
        self._prints = Prints()
        self._folder = tempfile.TemporaryDirectory()  # MNN may read weights from the file as long as it is loaded
        target = str(Path(self._folder.name) / "model.mnn")
        with self._prints, model_file(job) as source:
            convert(["mnnconvert", "-f", "ONNX", "--modelFile", source, "--MNNModel", target])
        if not Path(target).is_file():
            raise RuntimeError(self._prints.text())
        nn = self._mnn.nn
        try:
            with self._prints:
                manager = nn.create_runtime_manager((job["settings"],))
                self._net = nn.load_module_from_file(target, self._inputs, self._outputs, runtime_manager=manager)
        except SystemError as error:  # raised in place of a reason
            raise RuntimeError(self._prints.text()) from error

    def run(self, feeds: dict[str, Bits]) -> dict[str, Bits | np.ndarray[Any, Any]]:
        """Run once. With too few arrays MNN would end the process, so they are counted first."""
        arrays = in_order(plain_arrays(feeds), self._inputs)
        given = [self._given(array) for array in arrays]
        with self._prints:
            found = self._net.forward(given)
            outputs = [self._read(each) for each in found]
        if len(outputs) != len(self._outputs) or any(output is None for output in outputs):
            raise RuntimeError(self._prints.text() or "returned nothing")
        # A model of float16 is computed in float32.
        is_short = any(array.dtype == np.float16 for array in arrays)
        fitting = [each.astype(np.float16) if is_short and each.dtype == np.float32 else each for each in outputs]
        return dict(zip(self._outputs, fitting))

    def close(self) -> None:
        """Free the network and remove its file."""
        self._net = None
        self._folder.cleanup()
        self._prints.close()

    def _given(self, array: np.ndarray[Any, Any]) -> Any:
        kind = _TYPES.get(array.dtype.name)
        if kind is None:
            raise RefusalError(f"takes no {array.dtype.name}")
        if array.dtype == np.int64 and array.size and not _WIDEST.min <= array.min() <= array.max() <= _WIDEST.max:
            raise RefusalError("takes integers of 32 bits only")
        expr = self._mnn.expr
        laid_out = array.astype(_GIVEN[kind])
        return expr.const(laid_out, list(array.shape), expr.NCHW, getattr(expr, kind))

    def _read(self, variable: Any) -> Any:
        expr = self._mnn.expr
        if variable.data_format == expr.NC4HW4:
            variable = expr.convert(variable, expr.NCHW)
        read = variable.read()
        return None if read is None else np.array(read)


def _packages() -> tuple[Any, Any]:
    """The package and its converter; each prints what the processor has when it is imported."""
    prints = Prints()
    try:
        with prints:
            import _tools
            import MNN
    finally:
        prints.close()
    return MNN, _tools.mnnconvert
