"""Who may attend to whom, as nodes: positions, lengths and masks of an attention; applies none of them to scores."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sdpa_onnx.core.attention.inputs import numpy_dtype
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.operands import AttentionLengths, element_type, same_size
from sdpa_onnx.graph.nodes import Nodes

__all__ = [
    "WindowBounds",
    "as_bias",
    "attn_bias",
    "bounds_of",
    "clamp_mask",
    "may_have_empty_rows",
    "merged",
    "own_mask",
    "rows_with_keys",
    "spread",
    "unknown_rank",
    "visible_keys",
    "whole_mask",
]

_BOOL = ir.DataType.BOOL
# Source: ONNX ReduceMax and ReduceMin: axes are an attribute before opset 18, an input from there on.
_AXES_INPUT_OPSET = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBounds:
    """How far a query sees from its own position; None = to the end.

    Source: ONNX Attention, opset 25: causality is a right bound of 0.
    """

    left: int | None
    right: int | None

    def __bool__(self) -> bool:
        return self.left is not None or self.right is not None


def bounds_of(spec: AttentionSpec) -> WindowBounds:
    """Causality and windows of a spec as two bounds."""
    right = 0 if spec.is_causal else spec.right_window
    return WindowBounds(left=None if spec.left_window < 0 else spec.left_window, right=None if right < 0 else right)


def unknown_rank(attention: GraphAttention) -> str | None:
    """Why an attention's mask cannot be read, or None."""
    mask = attention.attn_mask
    return None if mask is None or mask.shape is not None else f"The rank of the mask '{mask.name}' is unknown."


def visible_keys(
    nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths, *, bounds: WindowBounds, with_lengths: bool
) -> ir.Value | None:
    """Boolean of what positions and lengths allow, or None where they allow everything.

    Args:
        nodes: Written to.
        attention: Gives past and lengths of the samples.
        lengths: Of the attention.
        bounds: What of causality and windows to apply.
        with_lengths: Whether padding is hidden too; the offset counts it in any case.

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
    """The attention's mask, boolean or of the attention's own type."""
    mask, element = attention.attn_mask, element_type(attention.dtype)
    if mask is None or mask.dtype in (None, _BOOL, element):
        return mask
    return nodes("Cast", mask, dtype=element, shape=mask.shape, to=int(element))


def whole_mask(nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths) -> ir.Value | None:
    """The attention's own mask with all its keys: a short one gets hidden keys.

    It is left as it is where the graph states that it is as long as the keys.
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


def merged(nodes: Nodes, mask: ir.Value | None, visible: ir.Value | None) -> ir.Value | None:
    """A mask and what is visible as one mask of the mask's type; None where there is neither."""
    if mask is None or visible is None:
        return visible if mask is None else mask
    if mask.dtype is _BOOL:
        return nodes("And", mask, visible, dtype=_BOOL)
    element = mask.dtype or ir.DataType.FLOAT
    return nodes("Where", visible, mask, nodes.constant(-np.inf, element), dtype=element)


def clamp_mask(nodes: Nodes, attention: GraphAttention, mask: ir.Value) -> ir.Value:
    """A float mask whose finite values are at least half the type's lowest; -inf stays: it hides.

    Half, so that adding a score cannot overflow; both vanish beside any score.
    """
    if mask.dtype is _BOOL:
        return mask
    element = element_type(attention.dtype)
    lowest = float(ml_dtypes.finfo(numpy_dtype(attention.dtype)).min)  # type: ignore[no-untyped-call]
    higher = nodes("Max", mask, nodes.constant(lowest / 2, element))
    hides = nodes("Equal", mask, nodes.constant(-np.inf, element), dtype=_BOOL)
    return nodes("Where", hides, mask, higher, dtype=element)


def attn_bias(
    nodes: Nodes, attention: GraphAttention, lengths: AttentionLengths, *, is_clamped: bool = False
) -> ir.Value | None:
    """Everything that hides keys as one float bias in the attention's type, -inf where hidden; or None.

    Args:
        nodes: Written to.
        attention: Whose masks.
        lengths: Of the attention.
        is_clamped: Whether to apply `clamp_mask` to the attention's own float mask.
    """
    visible = visible_keys(nodes, attention, lengths, bounds=bounds_of(attention.spec), with_lengths=True)
    mask = whole_mask(nodes, attention, lengths)
    if mask is not None and is_clamped:
        mask = clamp_mask(nodes, attention, mask)
    return as_bias(nodes, attention, merged(nodes, mask, visible))


def as_bias(nodes: Nodes, attention: GraphAttention, mask: ir.Value | None) -> ir.Value | None:
    """A boolean mask as a float one; -inf is the graph type's own, so that float16 holds it."""
    if mask is None or mask.dtype is not _BOOL:
        return mask
    element = element_type(attention.dtype)
    zero, hidden = nodes.constant(0.0, element), nodes.constant(-np.inf, element)
    return nodes("Where", mask, zero, hidden, dtype=element)


def spread(
    nodes: Nodes,
    attention: GraphAttention,
    lengths: AttentionLengths,
    mask: ir.Value,
    *,
    bounds: WindowBounds,
    per_sample: bool,
) -> ir.Value:
    """A whole mask as 4-D with all its queries and keys; samples and heads may stay 1.

    Args:
        nodes: Written to.
        attention: Whose mask is in it.
        lengths: Of the attention.
        mask: What `merged` or `as_bias` gave.
        bounds: Those in the mask: with any, it has all queries and keys already.
        per_sample: Whether the offset or the padding of the samples is in it.
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
    """Whether a query may see no key at all, in an attention that has keys.

    Causality alone leaves every query the first key.
    """
    masked = attention.attn_mask is not None or attention.nonpad_kv_seqlen is not None
    return masked or bounds_of(attention.spec).left is not None


def rows_with_keys(nodes: Nodes, attention: GraphAttention, bias: ir.Value, *, opset: int) -> ir.Value:
    """Boolean of the rows of a bias that hide not all keys: its shape with 1 key.

    A NaN in a float mask counts as a key, so that it comes out. The bias is smaller
    than the scores by what it is broadcast over; the scores are not read.
    No maximum is compared with -inf: OpenVINO 2026.4 gives the lowest finite number for a row of -inf,
    and onnxruntime 1.32 drops a NaN.
    """
    is_float = attention.attn_mask is not None and attention.attn_mask.dtype is not _BOOL
    if not is_float:  # 0 or -inf
        highest = _reduced(nodes, "ReduceMax", bias, opset)
        return nodes("Equal", highest, nodes.constant(0.0, element_type(attention.dtype)), dtype=_BOOL)
    hides = nodes("Equal", bias, nodes.constant(-np.inf, element_type(attention.dtype)), dtype=_BOOL)
    hidden = nodes("Cast", hides, dtype=ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))
    return nodes(
        "Less", _reduced(nodes, "ReduceMin", hidden, opset), nodes.constant(0.5, ir.DataType.FLOAT), dtype=_BOOL
    )


def _reduced(nodes: Nodes, operator: str, values: ir.Value, opset: int) -> ir.Value:
    """One number for the keys of each row."""
    if opset < _AXES_INPUT_OPSET:
        return nodes(operator, values, axes=[-1], keepdims=1)
    return nodes(operator, values, nodes.integers(-1), keepdims=1)


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
