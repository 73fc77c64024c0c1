"""Traverse subgraphs: the bodies of If, Loop and Scan nodes and the values that they read. Changes nothing."""

from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["inputs_within", "nodes_within", "subgraphs_of"]


def subgraphs_of(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs among a node's attributes, without those nested in them; a function's reference to a graph is none."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def nodes_within(node: ir.Node) -> Iterator[ir.Node]:
    """The node and the nodes of its subgraphs, at any depth."""
    yield node
    for graph in subgraphs_of(node):
        yield from graph.all_nodes()


def inputs_within(node: ir.Node) -> Iterator[ir.Value]:
    """The values that the node or its subgraphs read."""
    for inner in nodes_within(node):
        yield from (value for value in inner.inputs if value is not None)
