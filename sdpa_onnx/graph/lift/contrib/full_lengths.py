"""Whether the lengths that GroupQueryAttention is given are those of its cache and new keys, for any sizes.

Decides by whole-number sums of axes alone; what depends on numbers that the graph is fed proves nothing.
"""

from collections import Counter

import onnx_ir as ir

from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.sizes import SizeEntry, SymbolicSize

__all__ = ["counts_queries", "keys_fill_cache"]

# Operators whose every entry is one of their first input's.
_COPIES = frozenset({"Expand", "Reshape", "Tile", "Cast", "Identity", "Squeeze", "Unsqueeze"})


def keys_fill_cache(search: GraphFacts, seqlens: ir.Value, query: ir.Value, past: ir.Value | None) -> bool:
    """Whether `seqlens_k` is, for every sample, the length of the past plus that of the query, less one.

    Args:
        search: The graph.
        seqlens: (batch,).
        query: (batch, queries, width).
        past: (batch, heads, past length, width), or None.
    """
    sizes, held = search.sizes_of(query), None if past is None else search.sizes_of(past)
    told = _one_entry(search, seqlens)
    if told is None or sizes is None or (past is not None and held is None):
        return False
    wanted = _linear(sizes[1])
    if held is not None:
        wanted.update(_linear(held[2]))
    wanted[1] -= 1
    return _same(_linear(told), wanted)


def counts_queries(search: GraphFacts, valid: ir.Value, query: ir.Value) -> bool:
    """Whether `query_seqlens` is, for every sample, the length of the query."""
    told, sizes = _one_entry(search, valid), search.sizes_of(query)
    return told is not None and sizes is not None and _same(_linear(told), _linear(sizes[1]))


def _one_entry(search: GraphFacts, value: ir.Value) -> SizeEntry | None:
    """What all entries of a value are, seen through nodes that only repeat them."""
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
    """Coefficients of a sum of sizes; 1 stands for the constant."""
    if not isinstance(entry, SymbolicSize):
        return Counter({1: int(entry)})
    match entry.words:
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
