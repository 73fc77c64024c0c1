"""Match decomposed attention, softmax(QK^T) V in standard operators, as written by any exporter or by hand.

Matches from each softmax backwards to the product with the keys and forwards to the product with the values. A softmax
between two products that cannot be read is reported with the reason. Changes no other nodes.
"""

from collections.abc import Iterator

import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.assemble import AttentionParts, assemble
from sdpa_onnx.graph.lift.found import NAN_ROWS, FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.paths import PathNode, from_products, into_products
from sdpa_onnx.graph.lift.products import scores_product, values_product
from sdpa_onnx.graph.lift.refused import UnreadReason
from sdpa_onnx.graph.lift.softmax.score_chain import read_chain, softmax_axis
from sdpa_onnx.graph.lift.softmax.talking_heads import mixed_heads
from sdpa_onnx.graph.lift.softmax.weights import is_guard, other_readers, read_weights
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["read"]

_DIALECT = "softmax between two products"

# A product with the nodes between it and the softmax.
_Before = tuple[ir.Node, tuple[PathNode, ...]]
_After = tuple[PathNode, tuple[PathNode, ...]]


def read(search: GraphFacts) -> Iterator[FoundAttention]:
    """Find each softmax between two products, and read it or return the reason why it cannot be read."""
    for softmax in search.nodes:
        if softmax.op_type == "Softmax" and is_standard(softmax) and softmax.inputs and softmax.inputs[0] is not None:
            if reason := mixed_heads(search, softmax):
                yield FoundAttention(dialect=_DIALECT, node=search.name_of(softmax), reason=reason)
                continue
            before, after = from_products(search, softmax.inputs[0]), into_products(softmax.outputs[0])
            if before and after:
                yield _read(search, softmax, before, after)


def _read(search: GraphFacts, softmax: ir.Node, before: list[_Before], after: list[_After]) -> FoundAttention:
    """Read with the nearest upstream product that matches query and key; other products then belong to masks."""
    node = search.name_of(softmax)
    reasons: list[str] = []
    for path in before:
        found = _read_one(search, softmax, path, after)
        if not isinstance(found, UnreadReason):
            return found
        reasons.append(found.reason)
    return FoundAttention(dialect=_DIALECT, node=node, reason=reasons[0])


def _read_one(
    search: GraphFacts, softmax: ir.Node, before: _Before, after: list[_After]
) -> FoundAttention | UnreadReason:
    if len(after) > 1:
        names = ", ".join(search.name_of(step.node) for step, _ in after)
        return UnreadReason(f"the weights enter several products: nodes {names}")
    readers = other_readers(search, softmax, after[0][1], after[0][0].node)
    nodes = search.nodes_for(softmax)
    parts = _parts(search, nodes, softmax, before, after[0])
    if isinstance(parts, UnreadReason):
        search.discard(nodes)
        return parts
    found = assemble(search, nodes, softmax, parts)
    if isinstance(found, UnreadReason):
        search.discard(nodes)
        return found
    warnings = list(found[1])
    if readers:
        warnings.append(f"the weights are also read by {', '.join(readers)}, and a form does not compute them")
    added = parts.chain.added
    if _may_be_nan(found[0]) and not any(is_guard(search, softmax, step, added) for step in after[0][1]):
        warnings.append(NAN_ROWS)
    return FoundAttention(dialect=_DIALECT, node=search.name_of(softmax), attention=found[0], warnings=tuple(warnings))


def _may_be_nan(attention: GraphAttention) -> bool:
    """Whether the mask may hide by -inf, so that a fully masked row is NaN without a guard."""
    mask = attention.attn_mask
    if mask is None or attention.quantisers.masked:
        return False
    return mask.dtype is ir.DataType.BOOL or mask.is_graph_input()


def _parts(
    search: GraphFacts, nodes: Nodes, softmax: ir.Node, before: _Before, after: _After
) -> AttentionParts | UnreadReason:
    scores = scores_product(search, nodes, before[0])
    if isinstance(scores, UnreadReason):
        return scores
    chain = read_chain(search, before[1], scores.rank)
    if isinstance(chain, UnreadReason):
        return chain
    axis = softmax_axis(search, softmax, chain.rank)
    if axis != -1:
        return UnreadReason(f"softmax over axis {axis + chain.rank} at node {search.name_of(softmax)}")
    rank = read_weights(search, softmax, after[1], chain)
    if isinstance(rank, UnreadReason):
        return rank
    values = values_product(search, nodes, after[0])
    if isinstance(values, UnreadReason):
        return values
    return AttentionParts(scores=scores, chain=chain, values=values, weights_rank=rank)
