"""Check the calls of a model's functions before anything inlines them. Inlines nothing.

Functions that call each other several times make few bytes into many nodes: onnx's shape inference, onnx_ir and
onnxruntime follow every call, in code that no interrupt reaches.
"""

from collections import Counter
from graphlib import CycleError, TopologicalSorter

import onnx_ir as ir

__all__ = ["MOST_NODES", "call_fault", "inlined_nodes"]

# Of a graph, and of its functions when they are inlined: several times the nodes of the largest language models that
# exporters write (layers x some 1000). Reading takes about 16 KB and 0.4 ms of processor time a node.
MOST_NODES = 200_000


def call_fault(model: ir.Model) -> str | None:
    """The function that calls itself, through others or not, as a sentence without its full stop."""
    try:
        TopologicalSorter(_calls(model)).prepare()
    except CycleError as error:
        return f"function '{error.args[1][0][1]}' calls itself"
    return None


def inlined_nodes(model: ir.Model) -> int:
    """The nodes that the calls of a model's functions become when they are inlined, an integer of any size.

    Args:
        model: None of its functions calls itself.
    """
    calls = _calls(model)
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for name in TopologicalSorter(calls).static_order():  # what is called comes first
        if name in calls:
            sizes[name] = sum(times * sizes.get(callee, 1) for callee, times in calls[name].items())
    return sum(sizes.get(node.op_identifier(), 0) for node in model.graph.all_nodes()) if calls else 0


def _calls(model: ir.Model) -> dict[ir.OperatorIdentifier, Counter[ir.OperatorIdentifier]]:
    """How often each function has each operator, functions among them."""
    return {name: Counter(node.op_identifier() for node in one.all_nodes()) for name, one in model.functions.items()}
