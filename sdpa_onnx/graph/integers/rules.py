"""The table of constraints on integer inputs: operator x input x opset, each with the phrase that states it.

Sources: the operators' own texts in `onnx.defs` (default domain) and in onnxruntime's schemas (com.microsoft). What a
text leaves open and onnxruntime's CPU kernel refuses is quoted from its error message, and says so.
"""

from collections.abc import Callable, Iterator

import onnx_ir as ir

from sdpa_onnx.graph.domains import CONTRIB_DOMAIN, standard_schema
from sdpa_onnx.graph.integers.allowed import Allowed, IntegerKind, IntegerRule, NodeView
from sdpa_onnx.graph.one_node import FORMAL_INPUTS

__all__ = ["RULES", "input_names", "rules_for"]

_GQA, _MHA, _ATTENTION = "GroupQueryAttention", "MultiHeadAttention", "Attention"
_MORE_INPUTS = {
    (CONTRIB_DOMAIN, _GQA): ("k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens"),
}
_OTHER_INPUTS: dict[tuple[str, str], tuple[str, ...]] = {
    (CONTRIB_DOMAIN, "RotaryEmbedding"): ("input", "position_ids", "cos_cache", "sin_cache"),
    (CONTRIB_DOMAIN, "EmbedLayerNormalization"): (
        *("input_ids", "segment_ids", "word_embedding", "position_embedding", "segment_embedding"),
        *("gamma", "beta", "mask", "position_ids"),
    ),
}


def input_names(node: ir.Node, opset: int) -> tuple[str, ...]:
    """Names of a node's inputs in its operator's specification; empty for an unknown operator."""
    key = node.domain, node.op_type
    if key in _OTHER_INPUTS:
        return _OTHER_INPUTS[key]
    if node.domain == CONTRIB_DOMAIN:
        return (*FORMAL_INPUTS.get(key, ()), *_MORE_INPUTS.get(key, ()))
    schema = standard_schema(node, opset)
    return () if schema is None else tuple(formal.name for formal in schema.inputs)


def rules_for(node: ir.Node, name: str) -> Iterator[IntegerRule]:
    """The rules about an input of a node."""
    for rule in RULES:
        if (rule.domain, rule.operator, rule.name) == (node.domain, node.op_type, name):
            yield rule


def _total(view: NodeView) -> Allowed | None:
    """`total_sequence_length`: past and new together, or at most the length of a buffer that does not grow."""
    queries, batch = view.size("query", 1), view.size("query", 0)
    if queries is None or batch is None:
        return None
    held = (view.size("past_key", 2) or 0) if "past_key" in view.shapes else 0
    choices = {held + queries, *range(queries, held + 1)}
    if queries > 1 and batch > 1 and held:
        choices &= {queries}
    bias, rows = view.size("attention_bias", -1), view.size("cos_cache", 0)
    if bias is not None:
        choices &= {bias}
    choices = {one for one in choices if rows is None or one <= rows}
    if not choices:
        return Allowed(low=1, high=0)
    return Allowed(low=min(choices), high=max(choices), choices=tuple(sorted(choices)))


def _seqlens(view: NodeView) -> Allowed | None:
    """`seqlens_k`: below the total, which is that of the longest sample; one sample has no shorter one."""
    total = view.arrays.get("total_sequence_length")
    queries, batch = view.size("query", 1), view.size("query", 0)
    if total is None or total.size != 1 or queries is None or batch is None:
        return None
    last = int(total.reshape(-1)[0]) - 1
    possible = _total(view)
    if possible is not None and not possible.holds(total):
        return Allowed(low=1, high=0)
    return Allowed(low=last if batch == 1 else 0, high=last, is_reached=True)


def _total_keys(view: NodeView) -> int | None:
    """Number of past and new keys of MultiHeadAttention or Attention."""
    past, key = view.shapes.get("past_key", view.shapes.get("past")), view.shapes.get("key", view.shapes.get("input"))
    packed = view.shapes.get("query")
    if key is None and packed is not None and len(packed) == 5:
        key = packed
    if key is None:
        return None
    return key[2 if len(key) == 4 else 1] + (0 if past is None else past[-2])


def _bounds(view: NodeView) -> Allowed | None:
    keys = _total_keys(view)
    return None if keys is None else Allowed(low=min(1, keys), high=keys)


def _valid(view: NodeView) -> Allowed | None:
    """`nonpad_kv_seqlen`: at most the keys, and the columns of a mask."""
    shape = view.shapes.get("K")
    if shape is None:
        return None
    keys, columns = shape[2 if len(shape) == 4 else 1], view.size("attn_mask", -1)
    most = keys if columns is None else min(keys, columns)
    return Allowed(low=min(1, most), high=most)


def _query_lengths(view: NodeView) -> Allowed | None:
    queries, seqlens = view.size("query", 1), view.arrays.get("seqlens_k")
    if queries is None or seqlens is None:
        return None
    most = min(queries, int(seqlens.min(initial=queries)) + 1)
    return Allowed(low=min(1, most), high=most)


def _write_index(view: NodeView) -> Allowed | None:
    """Entries from the index on must have room, unless they wrap around."""
    axis = view.integer("axis", -2)
    room, new = view.size("past_cache", axis), view.size("update", axis)
    if room is None or new is None:
        return None
    if view.text("mode", "linear") == "circular":
        return Allowed(low=0, high=room - 1)
    return Allowed(low=0, high=room - new)


def _rotary_place(view: NodeView) -> Allowed | None:
    rows = view.size("cos_cache", 0)
    return None if rows is None else Allowed(low=0, high=rows - 1)


def _rotary_offset(view: NodeView) -> Allowed | None:
    """One offset for all samples: `position_ids` of shape (1,)."""
    rows, shape = view.size("cos_cache", 0), view.shapes.get("input")
    if rows is None or shape is None:
        return None
    return Allowed(low=0, high=rows - shape[2 if len(shape) == 4 else 1])


def _row_of(table: str, axis: str = "axis", default: int = 0) -> Callable[[NodeView], Allowed | None]:
    """An index along an axis of another input."""

    def allowed(view: NodeView) -> Allowed | None:
        size = view.size(table, view.integer(axis, default))
        return None if size is None else Allowed(low=0, high=size - 1)

    return allowed


def _nd_index(view: NodeView) -> Allowed | None:
    """An index tuple along the first axes of `data`; the smallest of these axes decides."""
    data, indices = view.shapes.get("data"), view.shapes.get("indices")
    if data is None or not indices:
        return None
    start = view.integer("batch_dims", 0)
    axes = data[start : start + indices[-1]]
    return Allowed(low=0, high=min(axes) - 1) if axes else None


def _one_hot(view: NodeView) -> Allowed | None:
    depth = view.arrays.get("depth")
    return None if depth is None or depth.size != 1 else Allowed(low=0, high=int(depth.reshape(-1)[0]) - 1)


def _visible(_: NodeView) -> Allowed:
    return Allowed(low=0, high=1)


def _rule(  # noqa: PLR0913  # one row of the table
    operator: str,
    name: str,
    kind: IntegerKind,
    allowed: Callable[[NodeView], Allowed | None],
    says: str,
    source: str,
    *,
    domain: str = "",
    first_opset: int = 1,
    ranks: tuple[int, ...] = (),
) -> IntegerRule:
    return IntegerRule(
        domain=domain,
        operator=operator,
        name=name,
        kind=kind,
        says=says,
        source=source,
        allowed=allowed,
        first_opset=first_opset,
        ranks=ranks,
    )


_BOUNDED = "within bounds [-s, s-1] along axis of size s"
_GATHERED = "All index values are expected to be within bounds [-s, s-1] along axis of size s"
RULES: tuple[IntegerRule, ...] = (
    _rule(
        _GQA,
        "total_sequence_length",
        IntegerKind.LENGTH,
        _total,
        "it is the number of past and new keys, or at most that of a buffer that does not grow; with several samples "
        "of several new tokens there is no past; a bias has as many columns, and the rotary tables as many rows",
        "Scalar tensor equivalent to the maximum total sequence length (past + new) of the batch.",
        domain=CONTRIB_DOMAIN,
    ),
    _rule(
        _GQA,
        "seqlens_k",
        IntegerKind.LENGTH,
        _seqlens,
        "the longest sample has total_sequence_length keys",
        "1D Tensor of shape (batch_size). Equivalent to (total_sequence_lengths - 1).",
        domain=CONTRIB_DOMAIN,
    ),
    _rule(
        _GQA,
        "position_ids",
        IntegerKind.POSITIONS,
        _rotary_place,
        "each position is a row of the rotary tables",
        "2D tensor with shape (batch_size, sequence_length). When processing the first prompt the kernel uses only the "
        "first element",
        domain=CONTRIB_DOMAIN,
    ),
    _rule(
        _GQA,
        "query_seqlens",
        IntegerKind.LENGTH,
        _query_lengths,
        "a sample has at most sequence_length new tokens, and at most seqlens_k + 1",
        "0 <= query_seqlens[b] <= min(sequence_length, seqlens_k[b] + 1)",
        domain=CONTRIB_DOMAIN,
    ),
    *(
        _rule(
            operator,
            name,
            IntegerKind.BOUNDS,
            _bounds,
            "a sample has at most as many valid keys as there are past and new ones",
            source,
            domain=CONTRIB_DOMAIN,
            ranks=(1,),
        )
        for operator, name, source in (
            (_MHA, "key_padding_mask", "Key padding mask with shape (batch_size), (3 * batch_size + 2)"),
            (_ATTENTION, "mask_index", "or index with shape (batch_size) or (2 * batch_size) or (3 * batch_size + 2)"),
        )
    ),
    *(
        _rule(
            operator,
            name,
            IntegerKind.MASK,
            _visible,
            "1 where a key is visible",
            source,
            domain=CONTRIB_DOMAIN,
            ranks=(2, 3, 4),
        )
        for operator, name, source in (
            (
                _MHA,
                "key_padding_mask",
                "(batch_size, total_sequence_length), or (batch_size, sequence_length, total_sequence_length)",
            ),
            (_ATTENTION, "mask_index", "with value 0 for masked and 1 otherwise"),
        )
    ),
    _rule(
        "EmbedLayerNormalization",
        "input_ids",
        IntegerKind.INDEX,
        _row_of("word_embedding", "", 0),
        "each is a row of the table",
        "2D words IDs with shape (batch_size, sequence_length)",
        domain=CONTRIB_DOMAIN,
    ),
    _rule(
        "EmbedLayerNormalization",
        "segment_ids",
        IntegerKind.INDEX,
        _row_of("segment_embedding", "", 0),
        "each is a row of the table",
        "2D segment IDs with shape (batch_size, sequence_length)",
        domain=CONTRIB_DOMAIN,
    ),
    _rule(
        "EmbedLayerNormalization",
        "position_ids",
        IntegerKind.POSITIONS,
        _row_of("position_embedding", "", 0),
        "each is a row of the table",
        "2D position ids with shape (batch_size, sequence_length) or (1, sequence_length)",
        domain=CONTRIB_DOMAIN,
    ),
    _rule(
        "EmbedLayerNormalization",
        "mask",
        IntegerKind.PREFIX,
        _visible,
        "1 where a token is valid",
        "2D attention mask with shape (batch_size, sequence_length)",
        domain=CONTRIB_DOMAIN,
    ),
    *(
        _rule(
            "RotaryEmbedding",
            "position_ids",
            kind,
            allowed,
            "each position is a row of the rotary tables",
            "1D tensor with shape (1) or 2D tensor with shape (batch_size, sequence_length)",
            domain=CONTRIB_DOMAIN,
            ranks=ranks,
        )
        for kind, allowed, ranks in (
            (IntegerKind.START, _rotary_offset, (1,)),
            (IntegerKind.POSITIONS, _rotary_place, (2,)),
        )
    ),
    _rule(
        "RotaryEmbedding",
        "position_ids",
        IntegerKind.POSITIONS,
        _rotary_place,
        "each position is a row of the rotary tables",
        "The position indices for the tokens.",
        first_opset=23,
    ),
    _rule(
        _ATTENTION,
        "nonpad_kv_seqlen",
        IntegerKind.LENGTH,
        _valid,
        "a sample has at most as many valid keys as there are, and as the mask has columns",
        "A vector of integers of shape `(batch_size,)` that indicates the number of valid",
        first_opset=24,
    ),
    _rule(
        "TensorScatter",
        "write_indices",
        IntegerKind.START,
        _write_index,
        "the new entries have room after the index",
        "cache_sequence_idx = write_indices[batch_idx] + sequence_idx",
        first_opset=24,
    ),
    _rule("Gather", "indices", IntegerKind.INDEX, _row_of("data"), "each is an entry of the axis", _GATHERED),
    _rule("GatherElements", "indices", IntegerKind.INDEX, _row_of("data"), "each is an entry of the axis", _GATHERED),
    _rule("GatherND", "indices", IntegerKind.INDEX, _nd_index, "each tuple is an entry of the first axes", _BOUNDED),
    _rule(
        "ScatterElements",
        "indices",
        IntegerKind.SLOTS,
        _row_of("data"),
        "each is an entry of the axis, none twice",
        _GATHERED,
    ),
    _rule(
        "ScatterND",
        "indices",
        IntegerKind.SLOTS,
        _nd_index,
        "each tuple is an entry of the first axes, none twice",
        "but are expected in the valid range",
    ),
    _rule(
        "OneHot",
        "indices",
        IntegerKind.INDEX,
        _one_hot,
        "each is below the depth",
        "Any entries in the 'indices' input tensor with values outside the range [-depth, depth-1]",
    ),
)
