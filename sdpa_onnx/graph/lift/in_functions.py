"""Find attention in called functions that are not inlined. Reports it as not read."""

import itertools
from collections.abc import Iterator

import onnx_ir as ir

from sdpa_onnx.graph.domains import CONTRIB_DOMAIN, is_standard
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.inlined import CONTRIB_ATTENTION
from sdpa_onnx.graph.lift.paths import from_products, into_products

__all__ = ["read"]


def read(search: GraphFacts) -> Iterator[FoundAttention]:
    """Find each attention in a function; the reason names the function."""
    for function in _called(search.model):
        for node in function.all_nodes():
            dialect = _dialect(search, node)
            if dialect is not None:
                where = f"it is inside the function {function.name}, {search.stays_function or 'which is not read'}"
                yield FoundAttention(dialect=dialect, node=search.name_of(node), reason=where)


def _called(model: ir.Model) -> Iterator[ir.Function]:
    bodies = list(model.functions.values())
    everywhere = itertools.chain(model.graph.all_nodes(), *(body.all_nodes() for body in bodies))
    called = {node.op_identifier() for node in everywhere}
    return (body for body in bodies if body.identifier() in called)


def _dialect(search: GraphFacts, node: ir.Node) -> str | None:
    if node.domain == CONTRIB_DOMAIN and node.op_type in CONTRIB_ATTENTION:
        return f"onnxruntime {node.op_type}"
    if not is_standard(node) or not node.inputs or node.inputs[0] is None:
        return None
    if node.op_type == "Attention":
        return "ONNX Attention"
    between = node.op_type == "Softmax" and from_products(search, node.inputs[0]) and into_products(node.outputs[0])
    return "softmax between two products" if between else None
