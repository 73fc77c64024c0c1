"""tract: a runtime in Rust for the CPU, one thread."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from ..arrays import Bits
from ..model_file import model_file
from ..node_attributes import attributes_of, has_windows
from ..plain_arrays import in_order, own_order, plain_arrays

__all__ = ["Tract"]

# What tract adds to a plan and computes nothing.
_NO_WORK = ("Source", "Const")


class Tract:
    """Opens models in tract."""

    name = "tract"
    install = "pip install 'sdpa-onnx[tract]'"
    measures_time = True
    threads = "one"

    def version(self) -> str:
        import tract

        return f"tract {tract.version()}"

    def refuses(self, nodes: list[Any]) -> str | None:
        """What 0.23.9 ignores and does not report.

        Not what depends on sizes: a causal Attention is right only where there are as many keys as queries.
        """
        if has_windows(nodes):
            return "ignores the windows of Attention"
        if any(given.get("unidirectional") for given in attributes_of(nodes, "MultiHeadAttention", "com.microsoft")):
            return "ignores unidirectional of MultiHeadAttention"
        return None

    def explain(self, text: str) -> str:
        """The innermost cause, without the backtrace of Rust."""
        message = text.partition("\n\nStack backtrace:")[0]
        outer, _, causes = message.partition("\n\nCaused by:\n")
        last = causes.strip().splitlines()[-1].strip() if causes.strip() else outer.strip().partition("\n")[0]
        number, _, cause = last.partition(": ")
        found = cause if number.isdigit() else last
        # The values of a tensor follow its type; only the type says what is wrong.
        head, values, expected = found.partition("..., expected ")
        return (f"{' '.join(head.split()[:-12])}, expected {expected}" if values else found).strip().rstrip(".")

    def open(self, job: dict[str, Any]) -> _Opened:
        """Load, infer shapes with symbols for the axes that vary, optimise."""
        return _Opened(job)


class _Opened:
    device = "cpu"

    def __init__(self, job: dict[str, Any]) -> None:
        import tract

        with model_file(job) as path:
            model = tract.onnx().load(path)
        inputs = [model.input_name(index) for index in range(model.input_count())]
        # An output is called as the node that writes it; only their order is the file's.
        self._outputs = own_order([""] * model.output_count(), job["outputs"], "outputs")
        self._inputs = own_order(inputs, job["inputs"], "inputs")
        model.analyse()
        self._runnable = model.into_model().into_runnable()

    def run(self, feeds: dict[str, Bits]) -> dict[str, Bits | np.ndarray[Any, Any]]:
        """Run once. Too few arrays would end the process (0.23.9), so they are counted first."""
        found = self._runnable.run(in_order(plain_arrays(feeds), self._inputs))
        return {name: tensor.to_numpy() for name, tensor in zip(self._outputs, found)}

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        """The operators of the optimised plan."""
        nodes = json.loads(self._runnable.profile_json(None))["nodes"]
        counts = Counter(node["op_name"] for node in nodes if node["op_name"] not in _NO_WORK)
        return {"assigned": {"tract": dict(counts)}, "threads": 1}

    def close(self) -> None:
        """Free the plan."""
        self._runnable = None
