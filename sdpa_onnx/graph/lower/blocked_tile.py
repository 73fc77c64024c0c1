"""Write one iteration of the blocked Loop: some key heads, a block of queries, and the keys that it sees.

Slices, multiplies and masks. Does not choose heads, queries and keys; `blocked_plan` does.
"""

from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement
from sdpa_onnx.core.attention.spec import Layout, MaskKind
from sdpa_onnx.core.attention.window_bounds import bounds_of
from sdpa_onnx.graph.attention_node import attributes_of
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.attention import scales_query
from sdpa_onnx.graph.lower.blocked_numbers import IndexArithmetic
from sdpa_onnx.graph.lower.blocked_plan import BlockPlan
from sdpa_onnx.graph.lower.decomposed import capped_scores
from sdpa_onnx.graph.lower.mask_nodes import as_bias, combine_masks, rows_with_keys
from sdpa_onnx.graph.lower.operands import element_type, roots, scaled
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["TileSources", "hides_on_the_right_only", "write_tile"]

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64
# Axes of a slice: heads and rows.
_HEADS_AND_ROWS = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSources:
    """Values of the graph around the Loop that the iterations read.

    Args:
        attention: The attention.
        opset: Opset of the graph.
        options: The inner operator and the placement of the scale.
        plan: The numbers of the iterations.
        query: (samples * q heads, queries, head_dim).
        key: (samples * key heads, keys, head_dim).
        value: (samples * key heads, keys, v_head_dim).
        cuts: Tables of slice starts and ends by name, (iterations, axes), see `blocked_loop`.
        mask: 4-D with all keys, or None.
        row_numbers: (rows, 1): 0, 1, ... within a block.
        edge: (rows, rows): 0 on and left of the diagonal, -inf right of it; None if the tile is not split.
        folded: Shape (key heads, rows of all heads that share a key head, -1).
        unfolded: Shape (q heads, rows, -1).
    """

    attention: GraphAttention
    opset: int
    options: LowerOptions
    plan: BlockPlan
    query: ir.Value
    key: ir.Value
    value: ir.Value
    cuts: dict[str, ir.Value]
    mask: ir.Value | None
    row_numbers: ir.Value
    edge: ir.Value | None
    folded: ir.Value
    unfolded: ir.Value

    @property
    def inner(self) -> Form:
        return self.options.inner or Form.DECOMPOSED

    @property
    def is_split(self) -> bool:
        """Whether keys that every query of a block sees have their own product, to which no mask is added."""
        bounds = bounds_of(self.attention.spec)
        hidden_otherwise = self.mask is not None or self.attention.nonpad_kv_seqlen is not None
        return (
            self.inner is Form.DECOMPOSED and bounds.left is None and bounds.right is not None and not hidden_otherwise
        )


def hides_on_the_right_only(attention: GraphAttention) -> bool:
    """Whether only positions hide keys, and only keys after the query."""
    bounds = bounds_of(attention.spec)
    is_masked = attention.attn_mask is not None or attention.nonpad_kv_seqlen is not None
    return bounds.left is None and bounds.right is not None and not is_masked


def write_tile(nodes: Nodes, sources: TileSources, turn: ir.Value) -> ir.Value:
    """Write one iteration; returns (q heads of the group, rows, v_head_dim)."""
    tile = _Tile(nodes, sources, turn)
    return tile.by_attention() if sources.inner is Form.ATTENTION else tile.by_formula()


class _Tile:
    def __init__(self, nodes: Nodes, sources: TileSources, turn: ir.Value) -> None:
        self._nodes = nodes
        self._of = sources
        self._turn = turn
        self._numbers = IndexArithmetic(nodes)
        self._picked: dict[ir.Value, ir.Value] = {}
        self._axes = nodes.integers(*_HEADS_AND_ROWS)

    def by_formula(self) -> ir.Value:
        """softmax(scale Q K^T + bias) V; fully masked rows are zero."""
        nodes, attention = self._nodes, self._of.attention
        query = self._folded(self._scaled_query())
        if self._of.is_split:
            bias = None
            free = self._unfolded(self._scores(query, "first", "free"))
            edge = self._unfolded(self._scores(query, "free", "last"))
            logits = nodes("Concat", free, nodes("Add", edge, self._edge_bias()), axis=2)
        else:
            logits = self._unfolded(self._scores(query, "first", "last"))
            bias = as_bias(nodes, attention, self._whole_mask())
            logits = logits if bias is None else nodes("Add", logits, bias)
        weights = self._folded(nodes("Softmax", logits, axis=-1))
        output = self._unfolded(nodes("MatMul", weights, self._cut(self._of.value, "first", "last")))
        return self._guarded(output, bias)

    def by_attention(self) -> ir.Value:
        """The same by one Attention node, whose mask contains everything that hides keys."""
        nodes, attention = self._nodes, self._of.attention
        first = nodes.integers(0)
        query = self._cut(self._of.query, "row", "row")
        if on_query := scales_query(attention.spec, self._of.options.workarounds):
            query = scaled(nodes, query, attention.spec.scale_value, attention.dtype)
        parts = [
            query,
            self._cut(self._of.key, "first", "last"),
            self._cut(self._of.value, "first", "last"),
        ]
        mask = self._whole_mask()
        inputs: list[ir.Value] = [nodes("Unsqueeze", part, first) for part in parts]
        if mask is not None:
            inputs.append(self._expanded(mask))
        spec = replace(
            attention.spec,
            is_causal=False,
            left_window=-1,
            right_window=-1,
            has_past=False,
            mask=MaskKind.NONE,
            layout=Layout.BNSH,
            scale=1.0 if on_query else attention.spec.scale,
        )
        attributes: dict[str, Any] = {**attributes_of(spec)}
        output = nodes("Attention", *inputs, **attributes)
        return self._guarded(nodes("Squeeze", output, first), as_bias(nodes, attention, mask))

    def _edge_bias(self) -> ir.Value:
        """Bias of the keys that not all queries of the block see: the first query sees one, the second two."""
        count = self._pick(self._of.cuts["edge_after"])
        return self._nodes("Slice", self._of.edge, self._nodes.integers(0), count, self._nodes.integers(1))

    def _guarded(self, output: ir.Value, bias: ir.Value | None) -> ir.Value:
        """Set rows whose bias hides every key to zero."""
        if bias is None:
            return output
        attention, nodes = self._of.attention, self._nodes
        with_keys = rows_with_keys(nodes, attention, bias, opset=self._of.opset)
        zero = nodes.constant(0.0, element_type(attention.dtype))
        return nodes("Where", with_keys, output, zero, dtype=output.dtype)

    def _scaled_query(self) -> ir.Value:
        query, spec = self._cut(self._of.query, "row", "row"), self._of.attention.spec
        match self._of.options.scale_placement:
            case ScalePlacement.QUERY | None:
                return scaled(self._nodes, query, spec.scale_value, self._of.attention.dtype)
            case ScalePlacement.BOTH:
                return scaled(self._nodes, query, roots(spec.scale_value)[0], self._of.attention.dtype)
            case ScalePlacement.SCORES:
                return query

    def _scores(self, query: ir.Value, start: str, end: str) -> ir.Value:
        nodes, attention = self._nodes, self._of.attention
        turned = nodes("Transpose", self._cut(self._of.key, start, end), perm=[0, 2, 1])
        scores = nodes("MatMul", query, turned)
        if self._of.options.scale_placement is ScalePlacement.SCORES:
            scores = scaled(nodes, scores, attention.spec.scale_value, attention.dtype)
        return capped_scores(nodes, scores, attention)

    def _whole_mask(self) -> ir.Value | None:
        """One mask of everything that hides a key of the tile: boolean or float, (heads or 1, rows or 1, keys)."""
        own = None
        if self._of.mask is not None:
            starts, ends = (self._pick(self._of.cuts[name]) for name in ("mask", "mask_after"))
            part = self._nodes("Slice", self._of.mask, starts, ends)
            own = self._nodes("Squeeze", part, self._nodes.integers(0))
        return combine_masks(self._nodes, own, self._visible())

    def _visible(self) -> ir.Value | None:
        """Keys that positions and lengths leave visible, boolean, (rows or 1, keys of the tile); None = all."""
        plan, numbers, nodes = self._of.plan, self._numbers, self._nodes
        bounds = bounds_of(self._of.attention.spec)
        if not bounds and plan.valid_keys is None:
            return None
        keys = numbers.range(self._pick(plan.last_key), self._pick(plan.first_key))
        position = numbers.add(self._of.row_numbers, self._pick(plan.position))
        found: list[ir.Value] = []
        if bounds.right is not None:
            limit = position if bounds.right == 0 else numbers.add(position, bounds.right)
            found.append(nodes("LessOrEqual", keys, limit, dtype=_BOOL))
        if bounds.left is not None:
            found.append(nodes("GreaterOrEqual", keys, numbers.subtract(position, bounds.left), dtype=_BOOL))
        if plan.valid_keys is not None:
            found.append(nodes("Less", keys, self._pick(plan.valid_keys), dtype=_BOOL))
        visible = found[0]
        for other in found[1:]:
            visible = nodes("And", visible, other, dtype=_BOOL)
        return visible

    def _expanded(self, mask: ir.Value) -> ir.Value:
        """Expand the mask to (1, heads or 1, rows, keys): some kernels do not broadcast a single row."""
        numbers, nodes = self._numbers, self._nodes
        shape = numbers.vector(1, self._of.plan.rows, 1)
        return nodes("Unsqueeze", nodes("Expand", mask, shape), nodes.integers(0))

    def _folded(self, value: ir.Value) -> ir.Value:
        """Stack the rows of all heads that share a key head."""
        is_single = self._of.attention.spec.heads_per_kv == 1
        return value if is_single else self._nodes("Reshape", value, self._of.folded)

    def _unfolded(self, value: ir.Value) -> ir.Value:
        """Undo `_folded`."""
        is_single = self._of.attention.spec.heads_per_kv == 1
        return value if is_single else self._nodes("Reshape", value, self._of.unfolded)

    def _cut(self, value: ir.Value, start: str, end: str) -> ir.Value:
        return self._nodes(
            "Slice", value, self._pick(self._of.cuts[start]), self._pick(self._of.cuts[f"{end}_after"]), self._axes
        )

    def _pick(self, table: ir.Value) -> ir.Value:
        """This iteration's row of a table, gathered once."""
        if table not in self._picked:
            self._picked[table] = self._numbers.pick(table, self._turn)
        return self._picked[table]
