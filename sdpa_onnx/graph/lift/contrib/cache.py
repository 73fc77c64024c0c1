"""Compute the key/value cache of onnxruntime's GroupQueryAttention with standard nodes.

In that operator every sample has its own number of keys, the buffer may be longer than all of them, and new keys are
written after the valid ones. Here nodes compute that buffer, and a mask of the visible keys of each query. Does not
read the operator; `gqa` does.
"""

from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.lift.contrib.mask import positions, size_of
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["CacheLengths", "buffer", "lengths_of", "valid_keys", "visible_by_query"]

_INT64 = ir.DataType.INT64
_BOOL = ir.DataType.BOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLengths:
    """Numbers of keys, all int64.

    Args:
        total: (batch, 1): valid keys of each sample, past and new.
        past: (batch, 1): cached keys among them: total minus the new ones, at least 0.
        longest: (1,): number of columns of the mask.
        queries: (1,): number of queries, which equals that of the new keys.
    """

    total: ir.Value
    past: ir.Value
    longest: ir.Value
    queries: ir.Value


def lengths_of(nodes: Nodes, query: ir.Value, seqlens: ir.Value, longest: ir.Value) -> CacheLengths:
    """Compute the lengths from the operator's inputs.

    Args:
        nodes: Node builder.
        query: (batch, queries, width).
        seqlens: `seqlens_k`, (batch,): valid keys minus one.
        longest: `total_sequence_length`, one number.

    Source: onnxruntime docs/ContribOperators.md: with T = seqlens_k + 1 keys and S queries, of which Q = min(S, T)
        are not padding, P = T - Q keys are cached.
    """
    flat = nodes("Reshape", nodes("Cast", seqlens, dtype=_INT64, to=int(_INT64)), nodes.integers(-1, 1))
    total = nodes("Add", flat, nodes.integers(1))
    queries = size_of(nodes, query, 1)
    past = nodes("Max", nodes("Sub", total, queries), nodes.integers(0))
    longest = nodes("Reshape", nodes("Cast", longest, dtype=_INT64, to=int(_INT64)), nodes.integers(1))
    return CacheLengths(total=total, past=past, longest=longest, queries=queries)


def valid_keys(nodes: Nodes, lengths: CacheLengths, keys: ir.Value) -> ir.Value:
    """Whether each of `keys` (1,) keys is not padding: (batch, 1, 1, keys)."""
    valid = nodes("Less", positions(nodes, keys), lengths.total, dtype=_BOOL)
    return nodes("Unsqueeze", valid, nodes.integers(1, 2), shape=ir.Shape([None, 1, 1, None]))


def visible_by_query(nodes: Nodes, lengths: CacheLengths, *, is_causal: bool, window: int) -> ir.Value:
    """Whether a query sees a key of the buffer: (batch, 1, queries or 1, longest).

    Args:
        nodes: Node builder.
        lengths: Lengths of the samples.
        is_causal: Query s has position P + s and sees the keys up to that position.
        window: Number of most recent keys that it sees, including its own; below 1 = all.
    """
    seen = valid_keys(nodes, lengths, lengths.longest)
    if not is_causal:
        return seen
    keys = positions(nodes, lengths.longest)
    rows = nodes("Add", lengths.past, positions(nodes, lengths.queries))
    places = nodes("Unsqueeze", rows, nodes.integers(1, 3))  # (batch, 1, queries, 1)
    future = nodes("Greater", keys, places, dtype=_BOOL)
    seen = nodes("And", seen, nodes("Not", future), shape=ir.Shape([None, 1, None, None]))
    if window > 0:
        first = nodes("Sub", places, nodes.integers(window))
        near = nodes("Greater", keys, first, dtype=_BOOL)
        seen = nodes("And", seen, near, shape=ir.Shape([None, 1, None, None]))
    return seen


def buffer(
    nodes: Nodes, new: ir.Value, past: ir.Value | None, lengths: CacheLengths, *, heads: int, width: int
) -> tuple[ir.Value, ir.Value]:
    """Write new keys (or values) after the valid ones of each sample.

    Args:
        nodes: Node builder.
        new: (batch, queries, heads * width).
        past: (batch, heads, past buffer, width), or None.
        lengths: Lengths of the samples.
        heads: Number of key and value heads.
        width: Width of one head.

    Returns:
        The keys to attend to, (batch, longest, heads * width), and the present buffer,
        (batch, heads, present buffer, width); rows after the new keys are 0.
    """
    rows = nodes("Reshape", new, nodes.integers(0, 0, heads, width))
    place, size = positions(nodes, lengths.longest), lengths.longest
    index = place
    if past is not None:
        held = size_of(nodes, past, 2)
        size = nodes("Max", lengths.longest, held)
        rows = nodes("Concat", nodes("Transpose", past, perm=[0, 2, 1, 3]), rows, axis=1)
        place = positions(nodes, size)
        shifted = nodes("Add", place, nodes("Sub", held, lengths.past))
        index = nodes("Where", nodes("Less", place, lengths.past, dtype=_BOOL), place, shifted, dtype=_INT64)
    last = nodes("Sub", size_of(nodes, rows, 1), nodes.integers(1))
    samples = nodes("Concat", size_of(nodes, rows, 0), size, axis=0)
    index = nodes("Expand", nodes("Min", index, last), samples)
    gathered = nodes("GatherND", rows, nodes("Unsqueeze", index, nodes.integers(2)), batch_dims=1, dtype=new.dtype)
    # Not `total`: the kernel also stores new keys that are padding, and a comparison with it covers them.
    end = nodes("Add", lengths.past, lengths.queries)
    written = nodes("Unsqueeze", nodes("Less", place, end, dtype=_BOOL), nodes.integers(2, 3))
    kept = nodes("Where", written, gathered, nodes.constant(0, new.dtype or ir.DataType.FLOAT), dtype=new.dtype)
    present = nodes("Transpose", kept, perm=[0, 2, 1, 3], shape=ir.Shape([None, heads, None, width]))
    merged = nodes("Reshape", kept, nodes.integers(0, 0, heads * width))
    attended = nodes(
        "Slice",
        merged,
        nodes.integers(0),
        lengths.longest,
        nodes.integers(1),
        # A separate axis name: their number differs from that of the queries.
        shape=ir.Shape([None, f"{nodes.prefix}_keys", heads * width]),
    )
    return attended, present
