"""The bodies of If, Loop and Scan nodes: what stands inside a node, and what it reads; changes nothing."""

from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["inputs_within", "nodes_within", "subgraphs_of"]


def subgraphs_of(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs among a node's attributes; those inside them are theirs."""
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def nodes_within(node: ir.Node) -> Iterator[ir.Node]:
    """The node and those of its subgraphs, at any depth."""
    yield node
    for graph in subgraphs_of(node):
        yield from graph.all_nodes()


def inputs_within(node: ir.Node) -> Iterator[ir.Value]:
    """What the node reads, in its subgraphs too."""
    for inner in nodes_within(node):
        yield from (value for value in inner.inputs if value is not None)
