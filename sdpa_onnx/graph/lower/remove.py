"""Remove unused nodes from a graph, and the nodes and initializers that only they used. Optimises nothing else."""

from collections.abc import Iterable

import onnx_ir as ir

from sdpa_onnx.graph.subgraphs import inputs_within, nodes_within

__all__ = ["remove_unread"]


def remove_unread(candidates: Iterable[ir.Node]) -> None:
    """Remove unused candidates, then the nodes and initializers that only they used.

    Other nodes are kept even if they are unused: they were so before.

    Args:
        candidates: Nodes of one graph.
    """
    waiting = list(dict.fromkeys(candidates))
    while waiting:
        node = waiting.pop()
        if node.graph is None or any(value.uses() or value.is_graph_output() for value in node.outputs):
            continue
        sources = list(dict.fromkeys(inputs_within(node)))
        _detach(node)
        node.graph.remove(node)
        for value in sources:
            producer = value.producer()
            if producer is not None:
                waiting.append(producer)
            elif not value.uses():
                _drop_initializer(value)


def _detach(node: ir.Node) -> None:
    for inner in nodes_within(node):
        for position in range(len(inner.inputs)):
            inner.replace_input_with(position, None)


def _drop_initializer(value: ir.Value) -> None:
    graph = value.graph
    if value.is_initializer() and not value.is_graph_input() and not value.is_graph_output() and graph is not None:
        graph.initializers.pop(value.name or "", None)
