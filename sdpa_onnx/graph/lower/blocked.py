"""Write attention as a Loop over blocks of queries that computes only the keys visible to each block.

Keys hidden by causality, windows or lengths are not computed, and only the scores of one block are in memory. Few
queries are computed in one piece instead. Does not choose block sizes by measurement: see docs/concepts/blocked.md.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower import attention as attention_form
from sdpa_onnx.graph.lower import decomposed
from sdpa_onnx.graph.lower.blocked_guard import highest_entries
from sdpa_onnx.graph.lower.blocked_loop import LoopOptions, write_loop, write_pieces
from sdpa_onnx.graph.lower.blocked_numbers import IndexArithmetic
from sdpa_onnx.graph.lower.blocked_plan import Blocking
from sdpa_onnx.graph.lower.blocked_tile import hides_on_the_right_only
from sdpa_onnx.graph.lower.form_outputs import FormOutputs
from sdpa_onnx.graph.lower.mask_nodes import unknown_rank
from sdpa_onnx.graph.lower.operands import AttentionLengths, FormOperands, join_operands, stated_size
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["build", "needed_opset", "refusal"]

BLOCKING = Blocking()


def needed_opset(attention: GraphAttention, options: LowerOptions) -> int:
    """Lowest opset of the inner operator."""
    if options.inner is Form.ATTENTION:
        return attention_form.needed_opset(attention, options)
    return 16 if attention.dtype is Dtype.BFLOAT16 else 13


def refusal(attention: GraphAttention, *, opset: int, options: LowerOptions) -> str | None:  # noqa: ARG001
    """Why the form cannot be written: a scores output, an unsupported inner form, or a mask of unknown rank."""
    if attention.scores is not None:
        return "It never has all scores at once, so it cannot return them as an output."
    if options.inner not in (None, Form.ATTENTION, Form.DECOMPOSED):
        return f"Its loop can contain 'attention' or 'decomposed', not '{options.inner}'."
    return unknown_rank(attention)


def build(nodes: Nodes, attention: GraphAttention, *, opset: int, options: LowerOptions) -> FormOutputs:
    """Write the loop, and alternatives that are faster at short lengths, under an If on the lengths.

    With a left window, even a single query skips most keys, so only the loop is written.
    """
    highest = None
    if attention.mask_band:
        highest = highest_entries(nodes, attention, AttentionLengths(nodes, attention), opset=opset)
    writing = LoopOptions(opset=opset, options=options, blocking=BLOCKING, highest=highest)

    def in_one_piece(into: Nodes) -> FormOutputs:
        if options.inner is Form.ATTENTION:
            return attention_form.build(into, attention, opset=opset, options=options)
        return decomposed.build(into, attention, opset=opset, options=options)

    def in_pieces(into: Nodes) -> FormOutputs:
        return _joined(into, attention, write_pieces, writing)

    def in_a_loop(into: Nodes) -> FormOutputs:
        return _joined(into, attention, write_loop, writing)

    def by_size(into: Nodes) -> FormOutputs:
        if hides_on_the_right_only(attention):
            return _either(into, attention, in_pieces, in_a_loop, condition=_is_short(into, attention, BLOCKING))
        if bounds:
            return in_a_loop(into)
        return _either(into, attention, in_one_piece, in_a_loop, condition=_is_small(into, attention, BLOCKING))

    bounds = attention.skipped_bounds
    if bounds.left is not None:
        return in_a_loop(nodes)
    return _either(nodes, attention, in_one_piece, by_size, condition=_is_few(nodes, attention, BLOCKING))


def _is_few(nodes: Nodes, attention: GraphAttention, blocking: Blocking) -> ir.Value | bool:
    """Whether there are too few queries for blocks."""
    queries = stated_size(attention.query, attention.spec.layout.length_axis)
    if isinstance(queries, int):
        return queries <= blocking.few
    return IndexArithmetic(nodes).is_at_most(AttentionLengths(nodes, attention).queries, blocking.few)


def _is_small(nodes: Nodes, attention: GraphAttention, blocking: Blocking) -> ir.Value | bool:
    """Whether there are too few scores for blocks to pay off."""
    if known := _known_sizes(attention):
        heads, queries, keys = known
        return heads * queries * keys <= blocking.whole
    numbers, lengths = IndexArithmetic(nodes), AttentionLengths(nodes, attention)
    return numbers.is_at_most(_scores(numbers, attention, lengths, lengths.queries), blocking.whole)


def _is_short(nodes: Nodes, attention: GraphAttention, blocking: Blocking) -> ir.Value | bool:
    """Whether the scores of one piece of all heads fit in a tile."""
    if known := _known_sizes(attention):
        heads, queries, keys = known
        return heads * -(-queries // blocking.pieces) * keys <= blocking.tile
    numbers, lengths = IndexArithmetic(nodes), AttentionLengths(nodes, attention)
    rows = numbers.blocks_of(lengths.queries, blocking.pieces)
    return numbers.is_at_most(_scores(numbers, attention, lengths, rows), blocking.tile)


def _known_sizes(attention: GraphAttention) -> tuple[int, int, int] | None:
    """Heads of all samples, queries and keys, where the graph fixes them; else None."""
    axis = attention.spec.layout.length_axis
    batch, queries = stated_size(attention.query, 0), stated_size(attention.query, axis)
    keys = stated_size(attention.key, axis)
    past = 0 if attention.past_key is None else stated_size(attention.past_key, 2)
    if isinstance(batch, int) and isinstance(queries, int) and isinstance(keys, int) and isinstance(past, int):
        return batch * attention.spec.q_num_heads, queries, past + keys
    return None


def _scores(numbers: IndexArithmetic, attention: GraphAttention, lengths: AttentionLengths, rows: ir.Value) -> ir.Value:
    """Number of scores of `rows` queries over all heads."""
    heads = numbers.multiply(lengths.batch, attention.spec.q_num_heads)
    return numbers.multiply(numbers.multiply(heads, rows), lengths.keys)


def _joined(
    nodes: Nodes,
    attention: GraphAttention,
    write: Callable[[Nodes, GraphAttention, FormOperands, LoopOptions], ir.Value],
    writing: LoopOptions,
) -> FormOutputs:
    """Write blocks over the concatenated cached and new keys, which are also the present outputs."""
    joined = _with_all_samples(nodes, attention, join_operands(nodes, attention))
    return FormOutputs(
        output=write(nodes, attention, joined, writing),
        present_key=None if attention.present_key is None else joined.key,
        present_value=None if attention.present_value is None else joined.value,
    )


def _either(
    nodes: Nodes,
    attention: GraphAttention,
    then: Callable[[Nodes], FormOutputs],
    otherwise: Callable[[Nodes], FormOutputs],
    *,
    condition: ir.Value | bool,
) -> FormOutputs:
    """Write an If whose branches have the same outputs; only the branch that runs, where the sizes are fixed.

    Seen: onnxruntime 1.32 folds an If with a constant condition, and can lose the producer of a value that the branch
    takes from outside ("Node input ... is not ... output of a previous node").
    """
    if isinstance(condition, bool):
        return (then if condition else otherwise)(nodes)
    wanted = [name for name in ("output", "present_key", "present_value") if getattr(attention, name) is not None]
    branches: dict[str, Any] = {}
    for name, build_into in (("then", then), ("else", otherwise)):
        inner = Nodes(f"{nodes.prefix}/{name}")
        branches[f"{name}_branch"] = _graph(inner, build_into(inner), wanted)
    outputs = nodes.many("If", condition, outputs=len(wanted), dtype=attention.query.dtype, **branches)
    named = dict(zip(wanted, outputs, strict=True))
    return replace(FormOutputs(output=named["output"]), **named)


def _with_all_samples(nodes: Nodes, attention: GraphAttention, joined: FormOperands) -> FormOperands:
    """Expand keys and values that all samples share (a static batch of 1): the loop iterates over heads of samples."""
    if stated_size(attention.key, 0) != 1 or stated_size(attention.query, 0) == 1:
        return joined
    shape = AttentionLengths(nodes, attention)
    sizes = shape.as_shape(shape.batch, 1, 1, 1)
    return replace(joined, key=nodes("Expand", joined.key, sizes), value=nodes("Expand", joined.value, sizes))


def _graph(nodes: Nodes, built: FormOutputs, wanted: list[str]) -> ir.Graph:
    """A branch as a graph without inputs; an output that it does not compute itself goes through an Identity."""
    outputs: list[ir.Value] = []
    for name in wanted:
        value: ir.Value = getattr(built, name)
        is_own = value.producer() in nodes.written
        outputs.append(value if is_own else nodes("Identity", value))
    return ir.Graph([], outputs, nodes=nodes.written, name=nodes.prefix.replace("/", "_"))
