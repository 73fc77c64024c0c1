"""emx: emx-onnx-cgen writes a model as a C program for fixed sizes, gcc compiles it, and it is called. One thread.

An implementation of Attention of its own, for agreement; its loops are plain C, so its times are those of the compiler.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import BFLOAT16, Bits
from ..fixed_sizes import fixed_sizes
from ..model_file import model_proto
from ..pipe import RefusalError
from ..plain_arrays import in_order

__all__ = ["Emx"]

# Each takes a second or more, and its program stays loaded.
_MOST_BUILDS = 64
# With -O3 -march=x86-64-v3 the loop vectoriser of gcc 12.2 copies a cache wrongly (present_key of Attention: past 3, 7
# new keys, width 8); -fsanitize=undefined finds nothing in the program.
_COMPILE = ("gcc", "-O2", "-shared", "-fPIC", "-w", "model.c", "-o", "model.so", "-lm")
_SIGNATURE = re.compile(r"^void model\((.*)\) \{", re.MULTILINE)
_PARAMETER = re.compile(r"(?:const )?(\w+) \w+\[restrict (\d+)\]((?:\[\d+\])*)")
_C_TYPES = {"float": "f4", "double": "f8", "_Float16": "f2", "__bf16": "u2", "bool": "?"}
# What stands behind the place of the first error, such as: unknown type name
_GCC_ERROR = re.compile(r"^\S+:\d+:\d+: (?:fatal )?error: (.*)$", re.MULTILINE)


class Emx:
    """Opens models as C programs."""

    name = "emx"
    install = "pip install 'sdpa-onnx[emx]'"
    measures_time = False
    threads = "one"

    def version(self) -> str:
        from importlib.metadata import version

        return f"emx-onnx-cgen {version('emx-onnx-cgen')}"  # importing it takes 0.4 s

    def unavailable(self) -> str | None:
        return None if shutil.which("gcc") else "gcc is missing; install it, for example with apt-get install gcc"

    def explain(self, text: str) -> str:
        """The first error of gcc, or the first line of the generator's without its advice on its command line."""
        found = _GCC_ERROR.search(text)
        line = found[1] if found else (text.strip().splitlines() or [""])[0]
        return line.partition(" Hint: ")[0].rstrip(".")

    def open(self, job: dict[str, Any]) -> _Opened:
        """Read the model; a program is built by the first run at each set of sizes."""
        return _Opened(job)


class _Opened:
    device = "cpu"

    def __init__(self, job: dict[str, Any]) -> None:
        self._model = model_proto(job)
        self._inputs, self._outputs = job["inputs"], job["outputs"]
        self._temporary = tempfile.TemporaryDirectory()
        self._programs: dict[tuple[tuple[int, ...], ...], _Program] = {}

    def run(self, feeds: dict[str, Bits]) -> dict[str, Bits | np.ndarray[Any, Any]]:
        """Run once; the first time at these sizes, build."""
        arrays = [np.asarray(array, order="C") for array, _ in in_order(feeds, self._inputs)]
        shapes = tuple(array.shape for array in arrays)
        if any(0 in shape for shape in shapes):
            raise RefusalError("takes no axis of length 0")
        if shapes not in self._programs:
            self._programs[shapes] = self._build(shapes)
        return dict(zip(self._outputs, self._programs[shapes].call(arrays)))

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        """One thread of compiled C."""
        return {"threads": 1}

    def close(self) -> None:
        """Remove the programs."""
        self._programs = {}
        self._temporary.cleanup()

    def _build(self, shapes: tuple[tuple[int, ...], ...]) -> _Program:
        from emx_onnx_cgen.compiler import Compiler, CompilerOptions

        if len(self._programs) == _MOST_BUILDS:
            raise RefusalError(f"builds a program for each set of sizes, and {_MOST_BUILDS} for one model at most")
        fixed = fixed_sizes(self._model, dict(zip(self._inputs, shapes)))
        source, weights = Compiler(CompilerOptions(model_name="model")).compile_with_weight_data(fixed)
        folder = Path(tempfile.mkdtemp(dir=self._temporary.name))
        (folder / "model.c").write_text(source, encoding="utf-8")
        (folder / "weights.bin").write_bytes(weights or b"")
        plain = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(_COMPILE, cwd=folder, env=plain, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        ranks = [len(value.type.tensor_type.shape.dim) for value in fixed.graph.output]
        return _Program(folder, source, [*map(len, shapes), *ranks], inputs=len(shapes))


class _Program:
    """A compiled model; its parameters are the inputs, then the outputs, with sizes that its source states."""

    def __init__(self, folder: Path, source: str, ranks: list[int], *, inputs: int) -> None:
        signature = _SIGNATURE.search(source)
        found = [_PARAMETER.fullmatch(each) for each in signature[1].split(", ")] if signature else []
        # A size that the generator does not find is written as -1, or becomes a parameter.
        if len(found) != len(ranks) or None in found or "[-1]" in source:
            raise RefusalError("finds not all sizes of the model's values, though those of its inputs are fixed")
        self._library = ctypes.CDLL(str(folder / "model.so"))
        self._library.model_load.restype = ctypes.c_bool
        if not self._library.model_load(str(folder / "weights.bin").encode()):
            raise RuntimeError("the program cannot read its weights")
        found_all = [_parameter(match, rank) for match, rank in zip(found, ranks) if match is not None]
        self._inputs, self._outputs = found_all[:inputs], found_all[inputs:]

    def call(self, arrays: list[np.ndarray[Any, Any]]) -> list[Bits | np.ndarray[Any, Any]]:
        for array, (_, dtype, shape) in zip(arrays, self._inputs):
            # The program reads as many bytes as it was written for.
            if (array.dtype, array.shape) != (dtype, shape):
                raise RefusalError(f"was built for {shape} of {dtype.name} and got {array.shape} of {array.dtype.name}")
        outputs = [np.empty(shape, dtype) for _, dtype, shape in self._outputs]
        self._library.model(*(ctypes.c_void_p(array.ctypes.data) for array in (*arrays, *outputs)))
        kinds = [kind for kind, _, _ in self._outputs]
        return [(array, BFLOAT16) if kind == "__bf16" else array for kind, array in zip(kinds, outputs)]


def _parameter(match: re.Match[str], rank: int) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    kind = match[1]
    if kind not in _C_TYPES and not kind.endswith("_t"):
        raise RefusalError(f"takes no values of C type {kind}")
    dtype = np.dtype(_C_TYPES.get(kind, kind.partition("_t")[0]))
    shape = (int(match[2]), *(int(size) for size in re.findall(r"\d+", match[3])))
    return kind, dtype, shape if rank else ()  # a scalar is written as an array of one
