"""Prove that the lengths passed to GroupQueryAttention are always the full lengths of its cache and new keys.

Compares integer sums of symbolic axis sizes. Proves nothing about lengths that depend on the contents of graph inputs.
"""

from collections import Counter

import onnx_ir as ir

from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.sizes import SizeEntry, SymbolicSize

__all__ = ["counts_queries", "keys_fill_cache"]

# Operators each of whose output entries is an entry of the first input.
_COPIES = frozenset({"Expand", "Reshape", "Tile", "Cast", "Identity", "Squeeze", "Unsqueeze"})


def keys_fill_cache(search: GraphFacts, seqlens: ir.Value, query: ir.Value, past: ir.Value | None) -> bool:
    """Whether `seqlens_k` of every sample is the length of the past plus that of the query, minus one.

    Args:
        search: The graph.
        seqlens: (batch,).
        query: (batch, queries, width).
        past: (batch, heads, past length, width), or None.
    """
    sizes, held = search.sizes_of(query), None if past is None else search.sizes_of(past)
    entry = _one_entry(search, seqlens)
    if entry is None or sizes is None or (past is not None and held is None):
        return False
    wanted = _linear(sizes[1])
    if held is not None:
        wanted.update(_linear(held[2]))
    wanted[1] -= 1
    return _same(_linear(entry), wanted)


def counts_queries(search: GraphFacts, valid: ir.Value, query: ir.Value) -> bool:
    """Whether `query_seqlens` of every sample is the length of the query."""
    entry, sizes = _one_entry(search, valid), search.sizes_of(query)
    return entry is not None and sizes is not None and _same(_linear(entry), _linear(sizes[1]))


def _one_entry(search: GraphFacts, value: ir.Value) -> SizeEntry | None:
    """The number that all entries of a value have in common, traced through nodes that only copy entries."""
    known = search.sizes_in(value)
    if known is not None:
        entries = known.ravel().tolist()
        return entries[0] if entries and all(entry == entries[0] for entry in entries) else None
    producer = value.producer()
    if producer is None or producer.domain != "" or not producer.inputs or producer.inputs[0] is None:
        return None
    if producer.op_type in _COPIES:
        return _one_entry(search, producer.inputs[0])
    if producer.op_type in ("Add", "Sub") and producer.inputs[1] is not None:
        left, right = _one_entry(search, producer.inputs[0]), _one_entry(search, producer.inputs[1])
        if left is None or right is None:
            return None
        return left + right if producer.op_type == "Add" else left - right
    return None


def _linear(entry: SizeEntry) -> Counter[object]:
    """Coefficients of a sum of sizes; key 1 is the constant term."""
    if not isinstance(entry, SymbolicSize):
        return Counter({1: int(entry)})
    match entry.terms:
        case ("+", int() | SymbolicSize() as left, int() | SymbolicSize() as right):
            total = _linear(left)
            total.update(_linear(right))
            return total
        case ("-", int() | SymbolicSize() as left, int() | SymbolicSize() as right):
            total = _linear(left)
            total.subtract(_linear(right))
            return total
        case _:
            return Counter({entry: 1})


def _same(one: Counter[object], other: Counter[object]) -> bool:
    difference = Counter(one)
    difference.subtract(other)
    return not any(difference.values())
