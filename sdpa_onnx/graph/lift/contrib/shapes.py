"""Types and shapes of the outputs of onnxruntime's own operators, for which ONNX infers nothing.

Without them, only the first of many attentions in a file optimised by onnxruntime could be read. What an operator that
is not listed returns stays unknown.

Source: onnxruntime docs/ContribOperators.md, com.microsoft version 1.
"""

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.lift.node_shapes import InferredType, KnownInput
from sdpa_onnx.graph.lift.sizes import SizeEntry

__all__ = ["contrib_types"]

_Inputs = Sequence[KnownInput | None]
_Sizes = tuple[SizeEntry | None, ...]
# Writes the type of one output of a node from its inputs; None if it is unknown.
_Rule = Callable[[ir.Node, int, _Inputs], InferredType | None]

# The output with the sum of all inputs that some operators have.
_SUM_OUTPUT = 3


def contrib_types(node: ir.Node, inputs: _Inputs) -> list[InferredType | None]:
    """The type of each output; None for one that is unknown.

    Args:
        node: Of onnxruntime's domain, or of an operator that onnxruntime defines in the default domain; of another
            domain, everything is unknown.
        inputs: In the order of the node; None for an absent or unknown one.
    """
    rule = _RULES.get(node.op_type)
    if rule is None or not inputs or node.domain not in ("", CONTRIB_DOMAIN):
        return [None] * len(node.outputs)
    return [rule(node, place, inputs) if value.name else None for place, value in enumerate(node.outputs)]


def _at(inputs: _Inputs, place: int) -> KnownInput | None:
    return inputs[place] if place < len(inputs) else None


def _integer(node: ir.Node, name: str, default: int | None) -> int | None:
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return attribute.as_int() if attribute.type is ir.AttributeType.INT else None


def _of(one: KnownInput | None, sizes: Sequence[SizeEntry | None] | None = None) -> InferredType | None:
    """The element type of an input with other sizes, or with its own."""
    return None if one is None else InferredType(dtype=one.dtype, sizes=tuple(one.sizes if sizes is None else sizes))


def _like_first(node: ir.Node, place: int, inputs: _Inputs) -> InferredType | None:  # noqa: ARG001  # one signature
    return _of(_at(inputs, 0)) if place in (0, _SUM_OUTPUT) else None


def _with_width(one: KnownInput | None, width: SizeEntry | None) -> InferredType | None:
    return None if one is None or width is None or not one.sizes else _of(one, (*one.sizes[:-1], width))


def _embedding(node: ir.Node, place: int, inputs: _Inputs) -> InferredType | None:
    """`EmbedLayerNormalization`: rows of the embedding table, one number per sample, and the sum of the rows."""
    ids, table = _at(inputs, 0), _at(inputs, 2)
    if ids is None or table is None:
        return None
    if place == 1:
        is_counted = _integer(node, "mask_index_type", 1) == 1
        return InferredType(dtype=ir.DataType.INT32, sizes=tuple(ids.sizes[:1])) if is_counted else None
    return _of(table, (*ids.sizes, table.sizes[-1]))


def _product(node: ir.Node, place: int, inputs: _Inputs) -> InferredType | None:
    """`FusedMatMul` and products of quantised operands; unknown if batch axes are moved."""
    left, right = _at(inputs, 0), _at(inputs, 1)
    if place or left is None or right is None or len(left.sizes) < 2 or len(right.sizes) < 2:
        return None
    if _integer(node, "transBatchA", 0) or _integer(node, "transBatchB", 0):
        return None
    rows, columns = (-1 if _integer(node, "transA", 0) else -2), (-2 if _integer(node, "transB", 0) else -1)
    longer, shorter = sorted((left.sizes[:-2], right.sizes[:-2]), key=len, reverse=True)
    extra = len(longer) - len(shorter)
    batch: _Sizes = tuple(longer[:extra]) + tuple(
        one if other in (1, one) else other if one == 1 else None
        for one, other in zip(longer[extra:], shorter, strict=True)
    )
    sizes = (*batch, left.sizes[rows], right.sizes[columns])
    is_float = left.dtype.is_floating_point()
    return InferredType(dtype=left.dtype if is_float else ir.DataType.FLOAT, sizes=sizes)


def _quantised_product(node: ir.Node, place: int, inputs: _Inputs) -> InferredType | None:
    return None if place else _with_width(_at(inputs, 0), _integer(node, "N", None))


def _attention(node: ir.Node, place: int, inputs: _Inputs) -> InferredType | None:
    """As wide as the value: a third of the weights' columns, unless qkv_hidden_sizes states it."""
    if place:
        return None
    widths, weights = node.attributes.get("qkv_hidden_sizes"), _at(inputs, 1)
    if widths is not None:
        known = list(widths.as_ints()) if widths.type is ir.AttributeType.INTS else []
        return _with_width(_at(inputs, 0), known[-1] if known else None)
    columns = weights.sizes[-1] if weights is not None and len(weights.sizes) == 2 else None
    return _with_width(_at(inputs, 0), columns // 3 if isinstance(columns, int) else None)


def _separate(node: ir.Node, place: int, inputs: _Inputs) -> InferredType | None:
    """`GroupQueryAttention` with separate inputs has the shape of its query; with packed inputs it is unknown."""
    is_present = [value is not None for value in node.inputs[1:3]]
    return _of(_at(inputs, 0)) if is_present == [True, True] and place == 0 else None


def _multi_head(node: ir.Node, place: int, inputs: _Inputs) -> InferredType | None:
    """As long as the query and as wide as the value, if both have rank 3; with heads apart, their widths joined."""
    query, value = _at(inputs, 0), _at(inputs, 2)
    if place or query is None or value is None or len(query.sizes) != 3 or None in node.inputs[:3]:
        return None
    if len(value.sizes) == 3:
        return _with_width(query, value.sizes[-1])
    heads = [value.sizes[axis] for axis in (1, 3)] if len(value.sizes) == 4 else [None]
    numbers = [size for size in heads if isinstance(size, int)]
    return _with_width(query, math.prod(numbers) if len(numbers) == len(heads) else None)


def _dequantised(node: ir.Node, place: int, inputs: _Inputs) -> InferredType | None:  # noqa: ARG001  # one signature
    """The shape of the first input in the type of the scale."""
    first = _at(inputs, 0)
    return None if first is None or place else _of(_at(inputs, 1), first.sizes)


def _quantised(node: ir.Node, place: int, inputs: _Inputs) -> InferredType | None:  # noqa: ARG001  # one signature
    """The shape of the first input in the type of the zero point, uint8 without one."""
    first, zero = _at(inputs, 0), _at(inputs, 2)
    if first is None or place:
        return None
    dtype = ir.DataType.UINT8 if zero is None else zero.dtype
    return InferredType(dtype=dtype, sizes=tuple(first.sizes))


_LIKE_FIRST = (
    *("BiasAdd", "BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", "GroupNorm", "Trilu"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "QLinearSigmoid", "QLinearLeakyRelu"),
    # onnxruntime defines these in the default domain, the second one below opset 17.
    *("SimplifiedLayerNormalization", "LayerNormalization"),
)
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_LIKE_FIRST, _like_first),
    "Attention": _attention,
    "DequantizeLinear": _dequantised,
    "DynamicQuantizeMatMul": _product,
    "EmbedLayerNormalization": _embedding,
    "FusedMatMul": _product,
    "GroupQueryAttention": _separate,
    "MatMulIntegerToFloat": _product,
    "MatMulNBits": _quantised_product,
    "MultiHeadAttention": _multi_head,
    "QuantizeLinear": _quantised,
}
