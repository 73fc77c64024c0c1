"""Subgraphs of a node: those that it has itself."""

import onnx_ir as ir

from sdpa_onnx.graph.subgraphs import subgraphs_of


def test_a_reference_to_a_graph_is_none() -> None:
    """A node of a function may name a graph that the caller has."""
    own = ir.Graph([], [], nodes=[], name="own")
    attributes = [ir.AttrGraph("then_branch", own), ir.RefAttr("else_branch", "given", ir.AttributeType.GRAPH)]
    node = ir.Node("", "If", [None], attributes=attributes, num_outputs=1)
    assert list(subgraphs_of(node)) == [own]
