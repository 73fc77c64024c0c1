"""Compute which queries, heads and keys each iteration of the Loop processes, as int64 nodes.

Reads no tensor contents except lengths. One iteration processes some key heads of one sample and a block of queries.
The last block ends at the last query and may overlap the previous block, so that all blocks have the same length.
"""

import math
from dataclasses import dataclass, replace

import onnx_ir as ir

from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.blocked_guard import is_seen_by_all
from sdpa_onnx.graph.lower.blocked_numbers import IndexArithmetic
from sdpa_onnx.graph.lower.operands import AttentionLengths
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["BlockPlan", "Blocking", "make_plan", "with_seen_keys"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Block sizes; any values are correct, those measured in docs/concepts/blocked.md are fast.

    Args:
        rows: Queries per block.
        short_rows: Queries per block if the block sees at most `short_keys` keys.
        short_keys: See `short_rows`.
        free_rows: Queries per block if positions hide no key: smaller blocks save nothing.
        tile: Scores in memory at once, elements, unless one head of a block has more: the float32 elements
            that fit in a second-level cache.
        pair: Two heads per iteration if their scores, keys and values have at most so many elements: work for
            a second thread.
        few: Up to so many queries are computed in one piece, without copying keys.
        whole: Attentions with at most so many scores, whose positions hide no key, are also computed in one piece.
        pieces: Number of blocks of all heads that are written in sequence, without a Loop, if their scores fit
            in a tile.
    """

    rows: int = 128
    short_rows: int = 64
    short_keys: int = 512
    free_rows: int = 256
    tile: int = 2**18
    pair: int = 2**21
    few: int = 64
    whole: int = 2**23
    pieces: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """Numbers of the Loop, int64: scalars, or vectors with one entry per iteration.

    Args:
        rows: Queries per block.
        group: Key heads per iteration; all of one sample.
        blocks: Blocks per group.
        turns: Number of iterations.
        sample: Sample of each iteration.
        first_head: First key head of each iteration, counted over all samples.
        first_row: First query of each iteration.
        position: Position of the first query among the keys.
        first_key, last_key: Range of the keys that some query of the block sees; not empty where there are keys
            and a query may see none.
        free_key: Every query of the block sees the keys before it.
        valid_keys: Number of keys that are not padding; None without lengths.
    """

    rows: ir.Value
    group: ir.Value
    blocks: ir.Value
    turns: ir.Value
    sample: ir.Value
    first_head: ir.Value
    first_row: ir.Value
    position: ir.Value
    first_key: ir.Value
    free_key: ir.Value
    last_key: ir.Value
    valid_keys: ir.Value | None


def make_plan(
    nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths, blocking: Blocking, *, in_pieces: bool = False
) -> BlockPlan:
    """Write the numbers of the Loop.

    Args:
        nodes: Node builder.
        attention: The attention.
        lengths: Its lengths.
        blocking: Block sizes.
        in_pieces: Process all heads in each iteration, with one iteration per piece.
    """
    numbers, spec, bounds = IndexArithmetic(nodes), attention.spec, attention.skipped_bounds
    heads = numbers.multiply(lengths.batch, spec.kv_num_heads)
    if in_pieces:
        rows, group = numbers.blocks_of(lengths.queries, blocking.pieces), heads
        blocks = turns = numbers.value(blocking.pieces)
    else:
        rows = _rows(numbers, lengths, attention, blocking)
        group = _group(numbers, attention, numbers.multiply(rows, _seen(numbers, lengths, bounds, rows)), blocking)
        blocks = numbers.maximum(numbers.blocks_of(lengths.queries, numbers.maximum(rows, 1)), 1)
        turns = numbers.multiply(numbers.divide(heads, group), blocks)
    turn = numbers.range(turns)
    of_group = numbers.divide(turn, blocks)
    first_head = numbers.multiply(of_group, group)
    sample = numbers.divide(first_head, spec.kv_num_heads)
    block = numbers.subtract(turn, numbers.multiply(of_group, blocks))
    first_row = numbers.minimum(numbers.multiply(block, rows), numbers.subtract(lengths.queries, rows))
    valid = None if attention.nonpad_kv_seqlen is None else numbers.pick(attention.nonpad_kv_seqlen, sample)
    position = _positions(numbers, lengths, first_row, valid)
    keys = _keys(numbers, lengths, bounds, position, numbers.add(position, rows), valid)
    first, free, last = (numbers.repeated(number, turns) for number in keys)
    return BlockPlan(
        rows=rows,
        group=group,
        blocks=blocks,
        turns=turns,
        sample=sample,
        first_head=first_head,
        first_row=first_row,
        position=position,
        first_key=first,
        free_key=free,
        last_key=last,
        valid_keys=valid,
    )


def with_seen_keys(
    nodes: Nodes,
    attention: GraphAttention,
    lengths: AttentionLengths,
    plan: BlockPlan,
    highest: ir.Value,
    *,
    opset: int,
) -> BlockPlan:
    """The plan with all keys for each block in which a query sees no key within the band of its mask.

    Args:
        nodes: Node builder.
        attention: The attention; its mask has a band.
        lengths: Its lengths.
        plan: Its plan by the band.
        highest: From `blocked_guard.highest_entries`.
        opset: Opset of the graph.
    """
    numbers = IndexArithmetic(nodes)
    first = numbers.add(numbers.multiply(plan.sample, lengths.queries), plan.first_row)
    sees = is_seen_by_all(nodes, attention, highest, first=first, rows=plan.rows, opset=opset)

    def chosen(within: ir.Value, otherwise: ir.Value) -> ir.Value:
        return nodes("Where", sees, within, otherwise, dtype=ir.DataType.INT64)

    return replace(
        plan,
        first_key=chosen(plan.first_key, numbers.value(0)),
        last_key=chosen(plan.last_key, lengths.keys),
    )


def _rows(
    numbers: IndexArithmetic, lengths: AttentionLengths, attention: GraphAttention, blocking: Blocking
) -> ir.Value:
    """Queries per block; fewer with grouped heads, because heads that share a key head form one matrix product."""
    shared = min(attention.spec.heads_per_kv, 4)
    long, short, free = (
        math.ceil(number / shared) for number in (blocking.rows, blocking.short_rows, blocking.free_rows)
    )
    bounds = attention.skipped_bounds
    if not bounds:
        return numbers.minimum(free, lengths.queries)
    if bounds.left is not None and bounds.right is not None and bounds.left + bounds.right < blocking.short_keys:
        return numbers.minimum(short, lengths.queries)
    return numbers.minimum(numbers.if_at_most(lengths.keys, blocking.short_keys, short, long), lengths.queries)


def _seen(numbers: IndexArithmetic, lengths: AttentionLengths, bounds: WindowBounds, rows: ir.Value) -> ir.Value:
    """Upper bound on the number of keys that a block sees."""
    if bounds.left is None or bounds.right is None:
        return lengths.keys
    return numbers.minimum(lengths.keys, numbers.add(rows, bounds.left + bounds.right))


def _group(numbers: IndexArithmetic, attention: GraphAttention, pairs: ir.Value, blocking: Blocking) -> ir.Value:
    """Key heads per iteration: the largest divisor whose scores stay in the cache, or two for somewhat more scores.

    A single head has less work for a second thread than two, but costs one thread 3 % less at 4096, 11 % at 8192.
    """
    spec = attention.spec
    scores = numbers.multiply(pairs, spec.heads_per_kv)
    # The share of scores in `pair` for a block of `rows` queries: per key, rows scores and its own elements.
    of_scores = blocking.pair * blocking.rows // (blocking.rows + spec.head_dim + spec.v_head_dim)
    group = numbers.value(1)
    for heads in range(2, spec.kv_num_heads + 1):
        if spec.kv_num_heads % heads == 0:
            maximum = (
                of_scores if heads == 2 and attention.skipped_bounds else blocking.tile
            )  # else the blocks are larger
            group = numbers.if_at_most(numbers.multiply(scores, heads), maximum, heads, group)
    return group


def _positions(
    numbers: IndexArithmetic, lengths: AttentionLengths, first_row: ir.Value, valid: ir.Value | None
) -> ir.Value:
    """Position of each block's first query. Source: ONNX Attention, opset 25, `core.attention.masks.causal_offset`."""
    if lengths.past is not None:
        return numbers.add(first_row, lengths.past)
    if valid is not None:
        return numbers.add(first_row, numbers.subtract(valid, lengths.queries))
    return first_row


def _keys(
    numbers: IndexArithmetic,
    lengths: AttentionLengths,
    bounds: WindowBounds,
    position: ir.Value,
    after: ir.Value,
    valid: ir.Value | None,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """First visible key, first key that not all queries see, and end of the visible keys, of each iteration."""
    keys = lengths.keys
    end = keys if valid is None else numbers.clamp(valid, 0, keys)
    last = end if bounds.right is None else numbers.clamp(numbers.add(after, bounds.right), 0, end)
    free = end if bounds.right is None else numbers.clamp(numbers.add(position, bounds.right), 0, end)
    if bounds.left is None:
        first = numbers.value(0)
    else:
        first = numbers.clamp(numbers.subtract(position, bounds.left), 0, numbers.maximum(numbers.subtract(keys, 1), 0))
    if bounds.left is not None or valid is not None:
        last = numbers.minimum(numbers.maximum(last, numbers.add(first, 1)), keys)
    return first, free, last
