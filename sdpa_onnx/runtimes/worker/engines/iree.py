"""IREE: a compiler of MLIR for the CPU. A model is compiled once, with the axes that vary, which takes seconds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..arrays import Bits
from ..model_file import model_proto
from ..plain_arrays import bfloat16_array, in_order

__all__ = ["Iree"]

_COMPILE = ["--iree-llvmcpu-target-cpu=host"]
_NOT_OPTIMISED = "--iree-opt-level=O0"
# "<stdin>:8:10: error: ..." of the compiler, with the operator of the model in it; "Error invoking function: c/runtime/
# src/iree/modules/hal/utils/buffer_diagnostics.c:191: INVALID_ARGUMENT; ...; while invoking native function ...".
_COMPILER = re.compile(r"^\S+:\d+:\d+: error: (.*)$", re.MULTILINE)
_OPERATOR = re.compile(r'failed to legalize operation .*?name = "onnx\.(\w+)"')
_RUNNING = re.compile(r"Error invoking function: \S+:\d+: ([^\n]*)")
# Seen in 3.13.0.
_NO_OPERATORS = frozenset({"Attention", "MultiHeadAttention"})


class Iree:
    """Opens models in IREE."""

    name = "iree"
    install = "pip install 'sdpa-onnx[iree]'"
    measures_time = True
    # Of this process: the threads that its pool was made with; 0 = none yet.
    pool_threads = 0

    def version(self) -> str:
        from importlib.metadata import version

        runtime, compiler = version("iree-base-runtime"), version("iree-base-compiler")
        return f"iree {runtime}" if runtime == compiler else f"iree {runtime}+compiler.{compiler}"

    def explain(self, text: str) -> str:
        """The compiler's first error, or the status of the call, without places and without the stack."""
        operator, compiler, running = _OPERATOR.search(text), _COMPILER.search(text), _RUNNING.search(text)
        if operator:
            return f"cannot lower the operator {operator[1]}"
        line = compiler[1] if compiler else running[1] if running else (text.strip().splitlines() or [""])[0]
        return line.partition("; while invoking")[0].strip().rstrip(".;")

    def refuses(self, nodes: list[Any]) -> str | None:
        """Attention in one node, which its importer does not lower."""
        for node in nodes:
            if node["op_type"] in _NO_OPERATORS:
                return f"does not lower the operator {node['op_type']}"
        return None

    def open(self, job: dict[str, Any]) -> _Opened:
        """Import and compile the model, which starts the compiler of IREE's package."""
        return _Opened(job)


class _Opened:
    device = "cpu"

    def __init__(self, job: dict[str, Any]) -> None:
        from iree import runtime

        self.warnings: list[str] = []
        self._inputs, self._outputs = job["inputs"], job["outputs"]
        self._threads = job["threads"]
        compiled = _compiled(job)
        config = runtime.Config(device=self._made_device(job["threads"]))
        module = runtime.VmModule.copy_buffer(config.vm_instance, compiled)
        # Beside the function of the graph there are its twin "NAME$async" and what begins with underscores.
        name = next(name for name in module.function_names if not name.startswith("__") and not name.endswith("$async"))
        self._call = runtime.load_vm_module(module, config)[name]

    def run(self, feeds: dict[str, Bits]) -> dict[str, Bits | np.ndarray[Any, Any]]:
        """Run once; the outputs are copied, since the arrays of the device are views."""
        found = self._call(*in_order({name: bfloat16_array(bits) for name, bits in feeds.items()}, self._inputs))
        outputs = [found] if len(self._outputs) == 1 else found
        return {name: np.array(array.to_host()) for name, array in zip(self._outputs, outputs)}

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        """The threads; IREE fuses nodes into kernels of its own, which have no operator."""
        return {"threads": self._threads}

    def close(self) -> None:
        """Free the module."""
        self._call = None

    def _made_device(self, threads: int) -> Any:
        from iree import runtime

        if threads == 1:  # the thread that calls is the one that works
            return runtime.get_driver("local-sync").create_default_device()
        if not Iree.pool_threads:
            Iree.pool_threads = threads
            runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
        if Iree.pool_threads != threads:
            self._threads = Iree.pool_threads
            self.warnings.append(f"IREE keeps the {self._threads} threads that its first model in this process got.")
        return runtime.get_driver("local-task").create_default_device()


def _compiled(job: dict[str, Any]) -> bytes:
    """The model as IREE's program; source: iree/compiler/tools/import_onnx (3.13.0), without its files."""
    import onnx
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context
    from iree.compiler.tools import compile_str

    info = onnx_importer.ModelInfo(onnx.shape_inference.infer_shapes(model_proto(job), data_prop=True))
    module = info.create_module(context=Context()).operation
    onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    options = _COMPILE if job["optimise"] else [*_COMPILE, _NOT_OPTIMISED]
    compiled: bytes = compile_str(str(module), input_type="onnx", target_backends=["llvm-cpu"], extra_args=options)
    return compiled
