"""Engines found in their folder, and the jobs and models that the contract gives them."""

import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import sdpa_onnx.runtimes.worker.engines as folder
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.judge.agreement import expect, judge
from tests.runtimes.models import Array, decomposed

ROOT = Path(__file__).parents[3]
BFLOAT16 = onnx.TensorProto.BFLOAT16
SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)

Engine = Any


def _engines() -> dict[str, str]:
    """Every class of the folder that is an engine, by its name."""
    found = {}
    for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if isinstance(kind, type) and kind.__module__ == module.name and hasattr(kind, "open"):
                found[str(kind.name)] = f"{module.name}:{name}"  # type: ignore[attr-defined]  # engines have one
    return found


ENGINES = _engines()
Sizes = tuple[int, int, int]
RAGGED, ONE = (2, 5, 7), (1, 1, 3)


def entry_of(name: str) -> str:
    """ "module:Class" of an engine, as an entry point has it."""
    return ENGINES[name]


def engine_of(entry: str) -> Engine:
    module, _, class_name = entry.partition(":")
    return getattr(importlib.import_module(module), class_name)()


def plain_model(dtype: str = "float32", names: Mapping[str, str] | None = None) -> onnx.ModelProto:
    """A decomposed attention with dynamic axes; its inputs and output may be renamed."""
    proto = decomposed(dtype).to_proto()
    for tensor in proto.graph.initializer:
        # As exporters write it; OpenVINO 2026.4.1 misreads bfloat16 that is written as int32_data.
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = (names or {}).get(value.name, value.name)
    for node in proto.graph.node:
        for values in (node.input, node.output):
            values[:] = [(names or {}).get(value, value) for value in values]
    return proto


def job_of(proto: onnx.ModelProto, **changes: Any) -> dict[str, Any]:
    return {
        "model": proto.SerializeToString(),
        "folder": None,
        "threads": 1,
        "purpose": "agreement",
        "optimise": True,
        "settings": {},
        "inputs": [value.name for value in proto.graph.input],
        "outputs": [value.name for value in proto.graph.output],
        "defaults": [],
        "report": None,
        "copies": 1,
        **changes,
    }


def opened(engine: Engine, proto: onnx.ModelProto, **changes: Any) -> Any:
    """What the engine opens, with the settings that it asks for itself."""
    job = job_of(proto, **changes)
    settings = getattr(engine, "settings", None)
    if settings is not None:
        job["settings"] = settings(threads=job["threads"], purpose=job["purpose"], optimise=job["optimise"])
    return engine.open(job)


def drawn(sizes: Sizes, *, seed: int = 0, dtype: str = "float32") -> dict[str, Array]:
    """Query, key and value of (batch, queries, keys)."""
    batch, queries, keys = sizes
    rng = np.random.default_rng(seed)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    lengths = {"Q": queries, "K": keys, "V": keys}
    return {name: rng.standard_normal((batch, 2, length, 8)).astype(kind) for name, length in lengths.items()}


def bits_of(arrays: Mapping[str, Array]) -> dict[str, tuple[Array, int]]:
    found = {}
    for name, array in arrays.items():
        number = helper.np_dtype_to_tensor_dtype(array.dtype)
        found[name] = (array.view(np.uint16) if number == BFLOAT16 else array, number)
    return found


def array_of(value: Any) -> NDArray[Any]:
    """What an engine returned for one output."""
    array, number = value if isinstance(value, tuple) else (value, 0)
    result: NDArray[Any] = np.asarray(array)
    return result.view(ml_dtypes.bfloat16) if number == BFLOAT16 else result


def result_of(loaded: Any, arrays: Mapping[str, Array], output: str = "Y") -> NDArray[Any]:
    """One output, run as the engine runs: at once, or bound."""
    feeds = bits_of(arrays)
    if hasattr(loaded, "run"):
        return array_of(loaded.run(feeds)[output])
    prepared = loaded.prepare(feeds)
    prepared.first_run()
    return array_of(prepared.outputs()[output])


def assert_right(engine: Engine, arrays: Mapping[str, Array], actual: NDArray[Any], dtype: str = "float32") -> None:
    """The type, the shape, and the project's own verdict at the arithmetic that the engine declares."""
    declared = engine.precision(dtype, "agreement") if hasattr(engine, "precision") else dtype
    inputs = AttentionInputs(query=arrays["Q"], key=arrays["K"], value=arrays["V"])
    assert actual.dtype.name == dtype
    assert actual.shape == arrays["Q"].shape
    found = judge(expect(SPEC, inputs, precision=find_precision(declared)), actual)
    assert found.verdict.is_right, found.diagnosis


def in_child(entry: str, probe: str, *arguments: object) -> Any:
    """What a function of `child` returns in a process of its own; an end of that process fails the test."""
    command = [sys.executable, "-m", "tests.runtimes.engines.child", entry, probe, json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{entry} ended the process with {done.returncode}: {done.stderr[-800:]}"
    return json.loads(done.stdout.splitlines()[-1])
