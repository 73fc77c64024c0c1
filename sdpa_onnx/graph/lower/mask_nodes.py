"""Build masks as nodes, from positions, lengths and masks of an attention. Does not apply them to scores."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sdpa_onnx.core.attention.inputs import numpy_dtype
from sdpa_onnx.core.attention.mask_rule import MaskRule
from sdpa_onnx.core.attention.window_bounds import WindowBounds, bounds_of
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.operands import AttentionLengths, element_type, same_size
from sdpa_onnx.graph.nodes import Nodes

__all__ = [
    "SEEN_SHARE",
    "as_bias",
    "attn_bias",
    "clamp_mask",
    "combine_masks",
    "expand_mask",
    "last_keys",
    "lowest_number",
    "may_have_empty_rows",
    "own_mask",
    "reduced",
    "rows_with_keys",
    "unknown_rank",
    "visible_keys",
    "whole_mask",
    "with_full_mask",
]

_BOOL = ir.DataType.BOOL
# Source: ONNX ReduceMax and ReduceMin: axes are an attribute before opset 18, an input from there on.
_AXES_INPUT_OPSET = 18
# Shares of the lowest number: an entry up to half of it hides (`spans.hidden_below`). A query sees a key whose entry is
# above a quarter, so that the weights of those hidden entries are 0.
_HIDDEN_SHARE, SEEN_SHARE = 0.5, 0.25


def unknown_rank(attention: GraphAttention) -> str | None:
    """Why an attention's mask cannot be used, or None."""
    mask = attention.attn_mask
    if mask is None or mask.shape is not None:
        return None
    return f"The rank of the mask '{mask.name}' is unknown: declare its shape in the file."


def with_full_mask(nodes: Nodes, attention: GraphAttention) -> GraphAttention:
    """The attention with a mask that means the same at every opset: one that broadcasts over the keys is expanded.

    Source: ONNX Attention, opset 24, pads a mask whose last axis is 1; opset 23 broadcasts it.
    """
    mask, key = attention.attn_mask, attention.key.shape
    if attention.mask_rule is MaskRule.PADDED or mask is None or not mask.shape or mask.shape[-1] != 1:
        return attention
    if attention.past_key is None and key is not None and key[attention.spec.layout.length_axis] == 1:
        return attention
    ones = (1,) * (len(mask.shape) - 1)
    lengths = AttentionLengths(nodes, attention)
    target = lengths.as_shape(*ones, lengths.keys)
    shape = ir.Shape([*list(mask.shape)[:-1], None])
    full = nodes("Expand", mask, target, dtype=mask.dtype, shape=shape)
    return replace(attention, attn_mask=full, mask_rule=MaskRule.PADDED)


def visible_keys(
    nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths, *, bounds: WindowBounds, with_lengths: bool
) -> ir.Value | None:
    """Keys that positions and lengths leave visible, boolean; None if they hide none.

    Args:
        nodes: Node builder.
        attention: Its past and the lengths of its samples are used.
        lengths: Lengths of the attention.
        bounds: The bounds to apply.
        with_lengths: Whether padding is hidden too; the causal offset depends on the lengths in any case.

    Returns:
        (queries, keys), or with lengths (batch, 1, queries or 1, keys).

    Source: ONNX Attention, opset 25, see `core.attention.masks`.
    """
    by_length = attention.nonpad_kv_seqlen if with_lengths else None
    if not bounds and by_length is None:
        return None
    keys = _range(nodes, lengths.keys)
    found: list[ir.Value] = []
    if bounds:
        position = _positions(nodes, attention, lengths)
        if bounds.right is not None:
            found.append(nodes("LessOrEqual", keys, _shifted(nodes, position, bounds.right), dtype=_BOOL))
        if bounds.left is not None:
            found.append(nodes("GreaterOrEqual", keys, _shifted(nodes, position, -bounds.left), dtype=_BOOL))
    if by_length is not None:
        found.append(nodes("Less", keys, _per_sample(nodes, by_length), dtype=_BOOL))
    visible = found[0]
    for other in found[1:]:
        visible = nodes("And", visible, other, dtype=_BOOL)
    return visible


def own_mask(nodes: Nodes, attention: GraphAttention) -> ir.Value | None:
    """The attention's mask, boolean or of the attention's element type."""
    mask, element = attention.attn_mask, element_type(attention.dtype)
    if mask is None or mask.dtype in (None, _BOOL, element):
        return mask
    return nodes("Cast", mask, dtype=element, shape=mask.shape, to=int(element))


def whole_mask(nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths) -> ir.Value | None:
    """The attention's own mask with an entry for every key: a short mask is padded with hidden keys.

    It is unchanged if the graph states that it is as long as the keys.
    """
    mask = own_mask(nodes, attention)
    if mask is None or mask.shape is None or len(mask.shape) == 0 or _is_whole(attention, mask):
        return mask
    rank = len(mask.shape)
    shape = nodes("Shape", mask, dtype=ir.DataType.INT64)
    own = nodes("Gather", shape, nodes.constant(rank - 1, ir.DataType.INT64), axis=0)
    missing = nodes("Reshape", nodes("Sub", lengths.keys, own), nodes.integers(1))
    before = nodes.integers(*[0] * (2 * rank - 1))
    amounts = nodes("Concat", before, missing, axis=0)
    hidden = nodes.constant(False if mask.dtype is _BOOL else -np.inf, mask.dtype or element_type(attention.dtype))
    return nodes("Pad", mask, amounts, hidden, shape=ir.Shape([*mask.shape[:-1], None]))


def combine_masks(nodes: Nodes, mask: ir.Value | None, visible: ir.Value | None) -> ir.Value | None:
    """Combine a mask and visible keys into one mask of the mask's type; None if there is neither."""
    if mask is None or visible is None:
        return visible if mask is None else mask
    if mask.dtype is _BOOL:
        return nodes("And", mask, visible, dtype=_BOOL)
    element = mask.dtype or ir.DataType.FLOAT
    return nodes("Where", visible, mask, nodes.constant(-np.inf, element), dtype=element)


def clamp_mask(nodes: Nodes, attention: GraphAttention, mask: ir.Value) -> ir.Value:
    """Clamp the finite values of a float mask to at least half the type's lowest number; -inf stays and hides.

    Half, so that adding a score cannot overflow. Weights of both numbers are 0 next to any visible score.
    """
    if mask.dtype is _BOOL:
        return mask
    element = element_type(attention.dtype)
    higher = nodes("Max", mask, nodes.constant(_HIDDEN_SHARE * lowest_number(attention), element))
    hides = nodes("Equal", mask, nodes.constant(-np.inf, element), dtype=_BOOL)
    return nodes("Where", hides, mask, higher, dtype=element)


def lowest_number(attention: GraphAttention) -> float:
    """The lowest finite number of the element type."""
    return float(ml_dtypes.finfo(numpy_dtype(attention.dtype)).min)  # type: ignore[no-untyped-call]  # it has no types


def attn_bias(
    nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths, *, is_clamped: bool = False
) -> ir.Value | None:
    """One float bias of everything that hides keys, in the attention's type, -inf where hidden; or None.

    Args:
        nodes: Node builder.
        attention: The attention.
        lengths: Its lengths.
        is_clamped: Whether to clamp the attention's own float mask, see `clamp_mask`.
    """
    visible = visible_keys(nodes, attention, lengths, bounds=bounds_of(attention.spec), with_lengths=True)
    mask = whole_mask(nodes, attention, lengths)
    if mask is not None and is_clamped:
        mask = clamp_mask(nodes, attention, mask)
    return as_bias(nodes, attention, combine_masks(nodes, mask, visible))


def as_bias(nodes: Nodes, attention: GraphAttention, mask: ir.Value | None) -> ir.Value | None:
    """A boolean mask as a float mask; -inf has the element type of the attention, so float16 represents it."""
    if mask is None or mask.dtype is not _BOOL:
        return mask
    element = element_type(attention.dtype)
    zero, hidden = nodes.constant(0.0, element), nodes.constant(-np.inf, element)
    return nodes("Where", mask, zero, hidden, dtype=element)


def expand_mask(
    nodes: Nodes,
    attention: GraphAttention,
    lengths: AttentionLengths,
    mask: ir.Value,
    *,
    bounds: WindowBounds,
    per_sample: bool,
) -> ir.Value:
    """Expand a mask to rank 4 with all queries and keys; batch and head axes may stay 1.

    Args:
        nodes: Node builder.
        attention: The attention.
        lengths: Its lengths.
        mask: From `combine_masks` or `as_bias`.
        bounds: The bounds in the mask; with any of them, it already has all queries and keys.
        per_sample: Whether the mask contains lengths of the samples.
    """
    own = attention.attn_mask
    axis = attention.spec.layout.length_axis
    rank = 0 if own is None or own.shape is None else len(own.shape)
    has_queries = bool(bounds) or (own is not None and rank >= 2 and same_size(own, -2, attention.query, axis))
    if not has_queries or (rank < 2 and not bounds):
        return nodes("Expand", mask, lengths.as_shape(1, 1, lengths.queries, lengths.keys))
    rank = 4 if per_sample else max(rank, 2)
    return mask if rank == 4 else nodes("Unsqueeze", mask, nodes.integers(*range(4 - rank)))


def may_have_empty_rows(attention: GraphAttention) -> bool:
    """Whether a row may be fully masked, in an attention that has keys.

    With causality alone, every query sees the first key.
    """
    masked = attention.attn_mask is not None or attention.nonpad_kv_seqlen is not None
    return masked or bounds_of(attention.spec).left is not None


def rows_with_keys(nodes: Nodes, attention: GraphAttention, bias: ir.Value, *, opset: int) -> ir.Value:
    """Rows of a bias that do not hide every key, boolean, in the shape of the bias with 1 key.

    A NaN in a float mask counts as visible, so that it stays in the output. The scores are not
    read, as the bias broadcasts and is smaller.
    No maximum is compared with -inf: OpenVINO 2026.4 returns the lowest finite number for a row of -inf,
    and onnxruntime 1.32 drops a NaN.
    """
    is_float = attention.attn_mask is not None and attention.attn_mask.dtype is not _BOOL
    if not is_float:  # 0 or -inf
        highest = reduced(nodes, "ReduceMax", bias, opset)
        return nodes("Equal", highest, nodes.constant(0.0, element_type(attention.dtype)), dtype=_BOOL)
    hides = nodes("Equal", bias, nodes.constant(-np.inf, element_type(attention.dtype)), dtype=_BOOL)
    hidden = nodes("Cast", hides, dtype=ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))
    return nodes(
        "Less", reduced(nodes, "ReduceMin", hidden, opset), nodes.constant(0.5, ir.DataType.FLOAT), dtype=_BOOL
    )


def last_keys(nodes: Nodes, attention: GraphAttention, bias: ir.Value, *, opset: int) -> ir.Value | None:
    """The last key that any query of a sample sees, (batch or 1,) int64, 0 if it sees none.

    The keys behind it are hidden from every query: all padding on the right, none on the left. Where a query sees no
    key, it averages over all keys that are hidden by a finite number, so only -inf hides then. None if the bias is
    the same for all samples.

    Args:
        nodes: Node builder.
        attention: Its mask or lengths are in the bias.
        bias: From `attn_bias`, with an entry for every key.
        opset: Of the graph.
    """
    mask = attention.attn_mask
    has_samples = mask is not None and mask.shape is not None and len(mask.shape) == 4 and mask.shape[0] != 1
    if not has_samples and attention.nonpad_kv_seqlen is None:
        return None
    element, lowest = element_type(attention.dtype), lowest_number(attention)
    limit = nodes.constant(-np.inf, element)
    if mask is not None and mask.dtype is not _BOOL:
        highest = reduced(nodes, "ReduceMax", bias, opset)
        for axis in (1, 2):
            highest = reduced(nodes, "ReduceMin", highest, opset, axis=axis)
        all_see = nodes("Greater", highest, nodes.constant(SEEN_SHARE * lowest, element), dtype=_BOOL)
        limit = nodes("Where", all_see, nodes.constant(_HIDDEN_SHARE * lowest, element), limit, dtype=element)
    # A comparison, because onnxruntime 1.32 drops a NaN from a maximum.
    hides = nodes("LessOrEqual", bias, limit, dtype=_BOOL)
    single = ir.DataType.FLOAT  # whose maximum along the last axis is fast
    shape = nodes("Shape", bias, dtype=ir.DataType.INT64)  # not of the keys: layers with one mask share what follows
    count = nodes("Gather", shape, nodes.constant(3, ir.DataType.INT64), axis=0)
    places = nodes("Cast", _range(nodes, count), dtype=single, to=int(single))
    last = nodes("Where", hides, nodes.constant(0.0, single), places, dtype=single)
    for axis in (3, 2, 1):
        last = reduced(nodes, "ReduceMax", last, opset, axis=axis)
    number = nodes("Cast", last, dtype=ir.DataType.INT64, to=int(ir.DataType.INT64))
    return nodes("Reshape", number, nodes.integers(-1))


def reduced(nodes: Nodes, operator: str, values: ir.Value, opset: int, *, axis: int = -1) -> ir.Value:
    """ReduceMax or ReduceMin over an axis, the keys of each row, which stays with size 1."""
    if opset < _AXES_INPUT_OPSET:
        return nodes(operator, values, axes=[axis], keepdims=1)
    return nodes(operator, values, nodes.integers(axis), keepdims=1)


def _is_whole(attention: GraphAttention, mask: ir.Value) -> bool:
    axis = 2 if len(attention.key.shape or ()) == 4 else 1
    if attention.past_key is None:
        return same_size(mask, -1, attention.key, axis)
    return attention.present_key is not None and same_size(mask, -1, attention.present_key, 2)


def _range(nodes: Nodes, count: ir.Value) -> ir.Value:
    zero, one = nodes.constant(0, ir.DataType.INT64), nodes.constant(1, ir.DataType.INT64)
    return nodes("Range", zero, count, one)


def _positions(nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths) -> ir.Value:
    """Absolute position of each query: (queries, 1), or (batch, 1, queries, 1) with lengths."""
    rows = nodes("Unsqueeze", _range(nodes, lengths.queries), nodes.integers(1))
    if lengths.past is not None:
        return nodes("Add", rows, lengths.past)
    if attention.nonpad_kv_seqlen is None:
        return rows
    ends = _per_sample(nodes, attention.nonpad_kv_seqlen)
    return nodes("Add", rows, nodes("Sub", ends, lengths.queries))


def _per_sample(nodes: Nodes, numbers: ir.Value) -> ir.Value:
    return nodes("Reshape", numbers, nodes.integers(-1, 1, 1, 1))


def _shifted(nodes: Nodes, position: ir.Value, by: int) -> ir.Value:
    return position if by == 0 else nodes("Add", position, nodes.constant(by, ir.DataType.INT64))
