"""Write the Loop over blocks of queries and reassemble its outputs. The body is in `blocked_tile`.

All iterations have outputs of the same size, which the Loop stacks into one scan output; one Gather moves every row to
its position. Growing the result by Concat in every iteration would take quadratic time.
"""

from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import LowerOptions, ScalePlacement
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.blocked_numbers import IndexArithmetic
from sdpa_onnx.graph.lower.blocked_plan import Blocking, BlockPlan, make_plan, with_seen_keys
from sdpa_onnx.graph.lower.blocked_tile import TileSources, hides_on_the_right_only, write_tile
from sdpa_onnx.graph.lower.mask_nodes import as_bias, whole_mask
from sdpa_onnx.graph.lower.operands import AttentionLengths, FormOperands, element_type, roots, scaled
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["LoopOptions", "write_loop", "write_pieces"]

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64
# From this opset on, Reshape has allowzero: a 0 in the shape is a size of 0. Before, it copies the input's size.
_ALLOWZERO_OPSET = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """Options of the blocked form.

    Args:
        opset: Opset of the graph.
        options: The inner operator and the placement of the scale.
        blocking: Block sizes.
        highest: What each query sees of a mask with a band, see `blocked_guard`.
    """

    opset: int
    options: LowerOptions
    blocking: Blocking
    highest: ir.Value | None = None


def write_loop(nodes: Nodes, attention: GraphAttention, joined: FormOperands, writing: LoopOptions) -> ir.Value:
    """Write the Loop and return its output in the attention's layout.

    The Loop gets a condition although it is always true: without one,
    onnx.reference (1.23.2) runs no iteration.
    """
    lengths = AttentionLengths(nodes, attention)
    plan = make_plan(nodes, attention, lengths, writing.blocking)
    if writing.highest is not None:
        plan = with_seen_keys(nodes, attention, lengths, plan, writing.highest, opset=writing.opset)
    sources = _sources(nodes, attention, joined, lengths, plan, writing)
    always = nodes.constant(True, _BOOL)
    body = _body(f"{nodes.prefix}/turn", sources)
    turns = nodes("Loop", plan.turns, always, dtype=element_type(attention.dtype), body=body)
    return _reassemble(nodes, attention, lengths, plan, turns)


def write_pieces(nodes: Nodes, attention: GraphAttention, joined: FormOperands, writing: LoopOptions) -> ir.Value:
    """Write a few blocks of all heads in sequence: at short lengths the overhead of a Loop costs more than it saves.

    Only for an attention without mask and lengths, because a piece contains all samples.
    """
    lengths = AttentionLengths(nodes, attention)
    plan = make_plan(nodes, attention, lengths, writing.blocking, in_pieces=True)
    sources = _sources(nodes, attention, joined, lengths, plan, writing)
    # No constants: onnxruntime 1.32.0 turns each Gather by a constant into Split and Squeeze, three times slower.
    turns = (IndexArithmetic(nodes).minimum(turn, lengths.queries) for turn in range(writing.blocking.pieces))
    tiles = [write_tile(nodes, sources, turn) for turn in turns]
    return _reassemble(nodes, attention, lengths, plan, nodes("Concat", *tiles, axis=0))


def _body(prefix: str, sources: TileSources) -> ir.Graph:
    """The Loop body: (iteration, condition) -> (condition, tile)."""
    nodes = Nodes(prefix)
    turn = ir.Value(name=f"{prefix}/number", type=ir.TensorType(_INT64), shape=ir.Shape([]))
    go_on = ir.Value(name=f"{prefix}/go_on", type=ir.TensorType(_BOOL), shape=ir.Shape([]))
    tile = write_tile(nodes, sources, turn)
    tile.shape = ir.Shape([None, None, sources.attention.spec.v_head_dim])
    further = nodes("Identity", go_on, dtype=_BOOL, shape=ir.Shape([]))
    return ir.Graph([turn, go_on], [further, tile], nodes=nodes.written, name=prefix.replace("/", "_"))


def _sources(
    nodes: Nodes,
    attention: GraphAttention,
    joined: FormOperands,
    lengths: AttentionLengths,
    plan: BlockPlan,
    writing: LoopOptions,
) -> TileSources:
    """Everything that an iteration reads, computed once before the Loop."""
    spec, numbers = attention.spec, IndexArithmetic(nodes)
    heads = numbers.multiply(plan.group, spec.heads_per_kv)
    folded_rows = numbers.multiply(plan.rows, spec.heads_per_kv)
    mask = whole_mask(nodes, attention, lengths)
    cuts = _cuts(numbers, attention, plan)
    row_numbers = numbers.column(numbers.range(plan.rows))
    edge = None
    if hides_on_the_right_only(attention):
        edge = as_bias(nodes, attention, numbers.is_at_most(numbers.range(plan.rows), row_numbers))
    if mask is not None:
        mask = _with_rank_4(nodes, attention, mask)
        cuts |= _mask_cuts(nodes, numbers, spec, plan, mask)
    key = joined.key
    if writing.options.scale_placement is ScalePlacement.BOTH:
        key = scaled(nodes, key, roots(spec.scale_value)[1], attention.dtype)
    of_queries = numbers.multiply(lengths.batch, spec.q_num_heads), lengths.queries
    of_keys = numbers.multiply(lengths.batch, spec.kv_num_heads), lengths.keys
    return TileSources(
        attention=attention,
        opset=writing.opset,
        options=writing.options,
        plan=plan,
        query=_flat(nodes, joined.query, numbers.vector(*of_queries, spec.head_dim), writing.opset),
        key=_flat(nodes, key, numbers.vector(*of_keys, spec.head_dim), writing.opset),
        value=_flat(nodes, joined.value, numbers.vector(*of_keys, spec.v_head_dim), writing.opset),
        cuts=cuts,
        mask=mask,
        row_numbers=row_numbers,
        edge=edge,
        folded=numbers.vector(plan.group, folded_rows, -1),
        unfolded=numbers.vector(heads, plan.rows, -1),
    )


def _flat(nodes: Nodes, value: ir.Value, shape: ir.Value, opset: int) -> ir.Value:
    """Reshape to (samples * heads, length, width); all sizes are explicit because any of them may be 0."""
    if opset < _ALLOWZERO_OPSET:
        return nodes("Reshape", value, shape)
    return nodes("Reshape", value, shape, allowzero=1)


def _cuts(numbers: IndexArithmetic, attention: GraphAttention, plan: BlockPlan) -> dict[str, ir.Value]:
    """Starts and ends of slices as tables of (head, row), one row per iteration."""
    shared = attention.spec.heads_per_kv
    last_head = numbers.add(plan.first_head, plan.group)
    corners = {
        "row": (numbers.multiply(plan.first_head, shared), plan.first_row),
        "row_after": (numbers.multiply(last_head, shared), numbers.add(plan.first_row, plan.rows)),
        "first": (plan.first_head, plan.first_key),
        "free": (plan.first_head, plan.free_key),
        "free_after": (last_head, plan.free_key),
        "last_after": (last_head, plan.last_key),
        "edge_after": (numbers.subtract(plan.last_key, plan.free_key),),
    }
    return {name: numbers.table(*corner, rows=plan.turns) for name, corner in corners.items()}


def _with_rank_4(nodes: Nodes, attention: GraphAttention, mask: ir.Value) -> ir.Value:
    own = attention.attn_mask
    missing = 4 - (0 if own is None or own.shape is None else len(own.shape))
    return mask if missing <= 0 else nodes("Unsqueeze", mask, nodes.integers(*range(missing)))


def _mask_cuts(
    nodes: Nodes, numbers: IndexArithmetic, spec: AttentionSpec, plan: BlockPlan, mask: ir.Value
) -> dict[str, ir.Value]:
    """Starts and ends of the mask's slices; an axis of size 1 broadcasts and is not cut."""
    sizes = nodes("Shape", mask, dtype=_INT64)
    own_head = numbers.subtract(plan.first_head, numbers.multiply(plan.sample, spec.kv_num_heads))
    firsts = (plan.sample, numbers.multiply(own_head, spec.heads_per_kv), plan.first_row)
    counts = (numbers.value(1), numbers.multiply(plan.group, spec.heads_per_kv), plan.rows)
    starts: list[ir.Value] = []
    afters: list[ir.Value] = []
    for axis, (first, count) in enumerate(zip(firsts, counts, strict=True)):
        size = numbers.pick(sizes, numbers.value(axis))
        is_full = numbers.clamp(numbers.subtract(size, 1), 0, 1)
        starts.append(numbers.multiply(first, is_full))
        last = numbers.subtract(numbers.add(first, count), 1)
        afters.append(numbers.add(numbers.multiply(last, is_full), 1))
    return {
        "mask": numbers.table(*starts, plan.first_key, rows=plan.turns),
        "mask_after": numbers.table(*afters, plan.last_key, rows=plan.turns),
    }


def _reassemble(
    nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths, plan: BlockPlan, turns: ir.Value
) -> ir.Value:
    """Move every row of the iterations' outputs to its position.

    A runtime stacks the outputs of the iterations; onnx.reference (1.23.2)
    concatenates them. Reshaped to rows, both are the same.
    """
    numbers, spec = IndexArithmetic(nodes), attention.spec
    rows = nodes("Reshape", turns, nodes.integers(-1, spec.v_head_dim))
    heads = numbers.multiply(plan.group, spec.heads_per_kv)
    tile = numbers.multiply(heads, plan.rows)
    head = numbers.range(numbers.multiply(lengths.batch, spec.q_num_heads))
    group = numbers.divide(head, heads)
    of_head = numbers.add(
        numbers.multiply(group, numbers.multiply(plan.blocks, tile)),
        numbers.multiply(numbers.subtract(head, numbers.multiply(group, heads)), plan.rows),
    )
    query = numbers.range(lengths.queries)
    block = numbers.minimum(numbers.divide(query, numbers.maximum(plan.rows, 1)), numbers.subtract(plan.blocks, 1))
    start = numbers.minimum(numbers.multiply(block, plan.rows), numbers.subtract(lengths.queries, plan.rows))
    of_query = numbers.add(numbers.multiply(block, tile), numbers.subtract(query, start))
    if spec.layout is Layout.BNSH:
        of_head = nodes("Reshape", of_head, nodes.integers(-1, spec.q_num_heads, 1), dtype=_INT64)
        return nodes("Gather", rows, numbers.add(of_head, of_query), axis=0)
    of_head = nodes("Reshape", of_head, nodes.integers(-1, 1, spec.q_num_heads), dtype=_INT64)
    apart = nodes("Gather", rows, numbers.add(of_head, numbers.column(of_query)), axis=0)
    return nodes("Reshape", apart, nodes.integers(0, 0, spec.q_num_heads * spec.v_head_dim))
