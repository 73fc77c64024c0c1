"""Combine the masks of decomposed attention into one mask: boolean (True = may attend) or float (added).

Adds the nodes that this needs to the copy of the graph. Does not prove causality; `mask_bands` does.
"""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sdpa_onnx.graph.lift.batch_heads import split_heads
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.refused import UnreadReason
from sdpa_onnx.graph.lift.sizes import stated
from sdpa_onnx.graph.lift.softmax.score_chain import MaskTerm
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["as_one_mask"]


def as_one_mask(
    search: GraphFacts,
    nodes: Nodes,
    terms: Sequence[MaskTerm],
    *,
    dtype: ir.DataType,
    key: ir.Value,
    heads: int | None,
    rank: int,
) -> ir.Value | UnreadReason | None:
    """Combine mask terms into one equivalent mask; None if there are no terms.

    A fill of -inf becomes a boolean mask, for which a fully masked row is 0. A
    finite fill becomes a float mask, for which such a row is the same as in
    the source.

    Args:
        search: The graph.
        nodes: Builder of the new nodes.
        terms: The terms, in the order in which they are applied.
        dtype: Element type of the attention.
        key: The keys; their length is the second-to-last axis.
        heads: Head count if batch and heads shared an axis that was split, else None.
        rank: Rank of query, key and value: 4, or 3 if batch and heads share an axis.
    """
    conditions: list[ir.Value] = []
    added: list[ir.Value] = []
    for term in terms:
        mask = _as_mask(search, nodes, term, dtype)
        shaped = _shaped(search, nodes, mask, key=key, heads=heads, rank=rank, term=term)
        if isinstance(shaped, UnreadReason):
            return shaped
        (conditions if shaped.dtype == ir.DataType.BOOL else added).append(shaped)
    return _one(nodes, _joined(nodes, "And", conditions), _joined(nodes, "Add", added), dtype)


def _one(nodes: Nodes, visible: ir.Value | None, bias: ir.Value | None, dtype: ir.DataType) -> ir.Value | None:
    if visible is None or bias is None:
        return visible if bias is None else bias
    return nodes("Where", visible, bias, nodes.constant(-math.inf, dtype), dtype=dtype)


def _as_mask(search: GraphFacts, nodes: Nodes, term: MaskTerm, dtype: ir.DataType) -> ir.Value:
    if term.hides is None:
        return _bias(search, nodes, term, dtype)
    return _condition(nodes, term.value, hides=term.hides, fill=term.fill, dtype=dtype)


def _bias(search: GraphFacts, nodes: Nodes, term: MaskTerm, dtype: ir.DataType) -> ir.Value:
    """An added mask; a boolean one if it adds 0 for visible and -inf for hidden keys."""
    value = _uncast(term.value)
    node = value.producer()
    if node is not None and node.op_type == "Where" and len(node.inputs) == 3 and node.inputs[0] is not None:
        chosen = [search.scalar_of(node.inputs[position]) for position in (1, 2)]
        if 0.0 in chosen and -math.inf in chosen and term.factor > 0:
            return _condition(nodes, node.inputs[0], hides=chosen[1] == 0.0, fill=-math.inf, dtype=dtype)
    value = term.value
    if term.factor != 1.0:
        value = nodes("Mul", value, nodes.constant(term.factor, value.dtype or dtype))
    return value if value.dtype == dtype else nodes("Cast", value, dtype=dtype, to=dtype)


def _uncast(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None and node.op_type in ("Cast", "Identity"):
        source = node.inputs[0]
        if source is None or source.dtype is None or not source.dtype.is_floating_point():
            break
        value = source
    return value


def _condition(nodes: Nodes, condition: ir.Value, *, hides: bool, fill: float, dtype: ir.DataType) -> ir.Value:
    if condition.dtype is None:  # the graph does not state its type
        condition.dtype = ir.DataType.BOOL
    with np.errstate(over="ignore"):
        stored = np.asarray(fill).astype(dtype.numpy())
    if np.isneginf(stored.astype(np.float64)):
        return _negated(nodes, condition) if hides else condition
    # Adding the lowest number absorbs the score, so a fully masked row is the mean of its values, as in the source,
    # where the fill replaces the score.
    kept, hidden = nodes.constant(0.0, dtype), nodes.constant(float(dtype.min), dtype)
    chosen = (hidden, kept) if hides else (kept, hidden)
    return nodes("Where", condition, *chosen, dtype=dtype)


def _negated(nodes: Nodes, condition: ir.Value) -> ir.Value:
    node = condition.producer()
    if node is not None and node.op_type == "Not" and node.inputs[0] is not None:
        return node.inputs[0]
    return nodes("Not", condition, dtype=ir.DataType.BOOL, shape=condition.shape)


def _shaped(
    search: GraphFacts, nodes: Nodes, mask: ir.Value, *, key: ir.Value, heads: int | None, rank: int, term: MaskTerm
) -> ir.Value | UnreadReason:
    """The mask as (batch, heads, queries, keys) or (queries, keys), its last axis with an entry for every key."""
    dims = search.dims_of(term.value)
    name = search.name_of(term.node)
    if dims is None:
        return UnreadReason(
            f"the rank of the mask '{term.value.name}' is unknown: node {name} (declare its shape in the file)"
        )
    if len(dims) > term.rank or term.rank > rank:
        return UnreadReason(
            f"the mask '{term.value.name}' has more axes than the scores: node {name} (reshape it to batch, heads, "
            "queries and keys)"
        )
    if not dims or dims[-1] == 1 or (dims[-1] is None and not _is_as_long(search, term.value, key)):
        mask, dims = _all_keys(search, nodes, mask, key, dims)
    if len(dims) == 1:
        return nodes("Unsqueeze", mask, nodes.integers(0))
    if len(dims) != 3:
        return mask
    if term.rank == 3 and rank == 4 and heads is not None and dims[0] != 1:
        return split_heads(search, nodes, mask, heads)
    return nodes("Unsqueeze", mask, nodes.integers(1 if rank == 3 else 0))


def _is_as_long(search: GraphFacts, mask: ir.Value, key: ir.Value) -> bool:
    """Whether the shapes prove that the mask has an entry for every key, so that its last axis never broadcasts."""
    own, keys = search.sizes_of(mask), search.sizes_of(key)
    return own is not None and keys is not None and own[-1] == keys[-2]


def _all_keys(
    search: GraphFacts, nodes: Nodes, mask: ir.Value, key: ir.Value, dims: tuple[int | None, ...]
) -> tuple[ir.Value, tuple[int | None, ...]]:
    """Expand a mask that broadcasts over the keys: for the operator, keys beyond a short last axis are hidden."""
    dims = (1,) * (2 - len(dims)) + dims
    sizes = search.sizes_of(key)
    count = nodes("Gather", nodes("Shape", key, dtype=ir.DataType.INT64), nodes.integers(-2), axis=0)
    target = nodes("Concat", nodes.integers(*[1] * (len(dims) - 1)), count, axis=0)
    stated_rows = list(mask.shape)[:-1] if mask.shape is not None and len(mask.shape) == len(dims) else dims[:-1]
    keys = None if sizes is None else stated(sizes[-2])
    shape = ir.Shape([*stated_rows, keys])
    return nodes("Expand", mask, target, dtype=mask.dtype, shape=shape), (*dims[:-1], None)


def _joined(nodes: Nodes, op_type: str, values: Sequence[ir.Value]) -> ir.Value | None:
    joined: ir.Value | None = None
    for value in values:
        joined = value if joined is None else nodes(op_type, joined, value)
    return joined
