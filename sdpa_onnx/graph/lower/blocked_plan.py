"""Which queries, heads and keys each turn of the loop takes, as numbers that the graph computes; touches no tensor.

A turn takes some key heads of one sample and a block of queries. The last
block ends with the last query and may begin before the block before it ends,
so that all have one length.
"""

import math
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.blocked_numbers import IndexArithmetic
from sdpa_onnx.graph.lower.mask_nodes import WindowBounds, bounds_of
from sdpa_onnx.graph.lower.operands import AttentionLengths
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["BlockPlan", "Blocking", "make_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """How large the blocks are; right for any numbers, fast for those of docs/blocked.md.

    Args:
        rows: Queries of a block.
        short_rows: Queries of a block that sees at most `short_keys` keys.
        short_keys: See `short_rows`.
        free_rows: Queries of a block where positions hide no key: nothing is saved by cutting finer.
        tile: Scores held at once, elements, as long as one head of a block has no more: what a second-level
            cache holds of float32.
        pair: Two heads a turn as long as their scores, keys and values are together no more, elements: work for a
            second thread.
        few: Up to so many queries are written in one piece, no key copied.
        whole: So are attentions whose positions hide no key and that have at most so many scores.
        pieces: Blocks of all heads that are written one after another, without a loop, where their scores are
            no more than a tile.
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
    """Numbers of the loop, int64: scalars, or one for each turn.

    Args:
        rows: Queries of a block.
        group: Key heads of a turn; all of one sample.
        blocks: Blocks of one group.
        turns: Turns of the loop.
        sample: Of each turn.
        first_head: Key head, counted over all samples.
        first_row: Query.
        position: Position of the first query among the keys.
        first_key, last_key: Keys that some query of the block sees; never none where there are keys at all
            and a query may see none.
        free_key: Keys before it are seen by every query of the block.
        valid_keys: Keys that are no padding; None without lengths.
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
    """Write the numbers of the loop.

    Args:
        nodes: Written to.
        attention: What is computed.
        lengths: Of the attention.
        blocking: How large the blocks are.
        in_pieces: Take all heads in a turn and so many turns as there are pieces.
    """
    numbers, spec, bounds = IndexArithmetic(nodes), attention.spec, bounds_of(attention.spec)
    heads = numbers.multiply(lengths.batch, spec.kv_num_heads)
    if in_pieces:
        rows, group = numbers.blocks_of(lengths.queries, blocking.pieces), heads
        blocks = turns = numbers.value(blocking.pieces)
    else:
        rows = _rows(numbers, lengths, spec, blocking)
        group = _group(numbers, spec, numbers.multiply(rows, _seen(numbers, lengths, bounds, rows)), blocking)
        blocks = numbers.most(numbers.blocks_of(lengths.queries, numbers.most(rows, 1)), 1)
        turns = numbers.multiply(numbers.divide(heads, group), blocks)
    turn = numbers.range(turns)
    of_group = numbers.divide(turn, blocks)
    first_head = numbers.multiply(of_group, group)
    sample = numbers.divide(first_head, spec.kv_num_heads)
    block = numbers.subtract(turn, numbers.multiply(of_group, blocks))
    first_row = numbers.least(numbers.multiply(block, rows), numbers.subtract(lengths.queries, rows))
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


def _rows(numbers: IndexArithmetic, lengths: AttentionLengths, spec: AttentionSpec, blocking: Blocking) -> ir.Value:
    """Queries of a block; heads that share a key head lie in one product, so that each of them needs fewer."""
    shared = min(spec.heads_per_kv, 4)
    long, short, free = (
        math.ceil(number / shared) for number in (blocking.rows, blocking.short_rows, blocking.free_rows)
    )
    bounds = bounds_of(spec)
    if not bounds:
        return numbers.least(free, lengths.queries)
    if bounds.left is not None and bounds.right is not None and bounds.left + bounds.right < blocking.short_keys:
        return numbers.least(short, lengths.queries)
    return numbers.least(numbers.if_at_most(lengths.keys, blocking.short_keys, short, long), lengths.queries)


def _seen(numbers: IndexArithmetic, lengths: AttentionLengths, bounds: WindowBounds, rows: ir.Value) -> ir.Value:
    """At most so many keys are seen by a block."""
    if bounds.left is None or bounds.right is None:
        return lengths.keys
    return numbers.least(lengths.keys, numbers.add(rows, bounds.left + bounds.right))


def _group(numbers: IndexArithmetic, spec: AttentionSpec, pairs: ir.Value, blocking: Blocking) -> ir.Value:
    """As many key heads as keep the scores of a turn in the cache, a divisor of all; two for somewhat more.

    A single head has less work for a second thread than two, and costs one thread 3 % less at 4096, 11 % at 8192.
    """
    scores = numbers.multiply(pairs, spec.heads_per_kv)
    # Of a block of `rows` queries, a key has so many scores, and so many elements of its own.
    of_scores = blocking.pair * blocking.rows // (blocking.rows + spec.head_dim + spec.v_head_dim)
    group = numbers.value(1)
    for heads in range(2, spec.kv_num_heads + 1):
        if spec.kv_num_heads % heads == 0:
            most = of_scores if heads == 2 and bounds_of(spec) else blocking.tile  # else the blocks are larger
            group = numbers.if_at_most(numbers.multiply(scores, heads), most, heads, group)
    return group


def _positions(
    numbers: IndexArithmetic, lengths: AttentionLengths, first_row: ir.Value, valid: ir.Value | None
) -> ir.Value:
    """Source: ONNX Attention, opset 25, see `core.attention.masks.causal_offset`."""
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
    """First key, first key that not all see, and the key after the last, of each turn."""
    keys = lengths.keys
    end = keys if valid is None else numbers.clamp(valid, 0, keys)
    last = end if bounds.right is None else numbers.clamp(numbers.add(after, bounds.right), 0, end)
    free = end if bounds.right is None else numbers.clamp(numbers.add(position, bounds.right), 0, end)
    if bounds.left is None:
        first = numbers.value(0)
    else:
        first = numbers.clamp(numbers.subtract(position, bounds.left), 0, numbers.most(numbers.subtract(keys, 1), 0))
    if bounds.left is not None or valid is not None:
        last = numbers.least(numbers.most(last, numbers.add(first, 1)), keys)
    return first, free, last
