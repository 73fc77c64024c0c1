"""Read query, key and value of onnxruntime's `MultiHeadAttention` in each of its input layouts; reads no masks.

Source: onnxruntime docs/ContribOperators.md, com.microsoft version 1.
"""

import onnx_ir as ir

from sdpa_onnx.graph.lift.contrib.node import ContribNode, NotReadError
from sdpa_onnx.graph.lift.contrib.operands import ContribOperands, add_bias, describe, merge_heads_last

__all__ = ["read_operands"]


def read_operands(one: ContribNode, heads: int) -> ContribOperands:
    """Query, key and value of rank 3, from separate inputs, cached keys and values, packed keys, or a packed query.

    Raises:
        NotReadError: If the inputs have none of these layouts, or sizes are unknown or do not match.
    """
    query = one.need("query")
    if one.rank(query, "query") == 5:
        return _packed_in_query(one, query, heads)
    if one.rank(query, "query") != 3:
        raise NotReadError("the rank of its query is neither 3 nor 5")
    if one.get("key") is None:
        raise NotReadError("it has no key, and its query has 3 axes")
    key = one.need("key")
    head_dim = one.heads_width(query, heads, "query")
    describe(query, None, None, None, heads * head_dim)
    match one.rank(key, "key"):
        case 5:
            return _packed_in_key(one, query, key, heads, head_dim)
        case 4:
            return _heads_first(one, query, key, heads, head_dim)
        case 3:
            return _separate(one, query, key, heads, head_dim)
        case rank:
            raise NotReadError(f"the rank of its key is {rank}, not 3, 4 or 5")


def _separate(one: ContribNode, query: ir.Value, key: ir.Value, heads: int, head_dim: int) -> ContribOperands:
    value = one.need("value")
    v_head_dim = one.heads_width(value, heads, "value")
    if one.heads_width(key, heads, "key") != head_dim:
        raise NotReadError("its query and key have heads of different width")
    widths = (heads * head_dim, heads * head_dim, heads * v_head_dim)
    for operand, width in ((key, widths[1]), (value, widths[2])):
        describe(operand, query.dtype, None, None, width)
    equally_long = one.same_size(query, 1, key, 1)
    query, key, value = add_bias(one, one.get("bias"), (query, key, value), widths)
    return ContribOperands(
        query=query, key=key, value=value, head_dim=head_dim, v_head_dim=v_head_dim, equally_long=equally_long
    )


def _heads_first(one: ContribNode, query: ir.Value, key: ir.Value, heads: int, head_dim: int) -> ContribOperands:
    """Keys and values of cross-attention in the layout of a cache: (batch, heads, length, width)."""
    value = one.need("value")
    if one.rank(value, "value") != 4:
        raise NotReadError("its key has 4 axes, but its value has not")
    for operand, name in ((key, "key"), (value, "value")):
        if one.search.dims_of(operand)[1] not in (None, heads):  # type: ignore[index]  # its rank is known
            raise NotReadError(f"its {name} does not have the {heads} heads of its attribute num_heads")
    v_head_dim = one.size(value, -1, "value")
    if one.size(key, -1, "key") != head_dim:
        raise NotReadError("its query and key have heads of different width")
    equally_long = one.same_size(query, 1, key, 2)
    widths = (heads * head_dim, heads * head_dim, heads * v_head_dim)
    # Cached keys and values already include their bias: the kernel adds only the query's part.
    (query,) = add_bias(one, one.get("bias"), (query,), widths)
    return ContribOperands(
        query=query,
        key=merge_heads_last(one.nodes, key, heads * head_dim),
        value=merge_heads_last(one.nodes, value, heads * v_head_dim),
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        equally_long=equally_long,
    )


def _packed_in_key(one: ContribNode, query: ir.Value, packed: ir.Value, heads: int, head_dim: int) -> ContribOperands:
    one.refuse("value", why="but its key packs key and value")
    one.refuse("bias", why="which is not read together with packed keys")
    width = _packed_width(one, packed, heads, 2, "key")
    if width != head_dim:
        raise NotReadError("its query and key have heads of different width")
    key, value = _unpack(one, packed, 2, heads * width)
    return ContribOperands(
        query=query,
        key=key,
        value=value,
        head_dim=head_dim,
        v_head_dim=head_dim,
        equally_long=one.same_size(query, 1, packed, 1),
    )


def _packed_in_query(one: ContribNode, packed: ir.Value, heads: int) -> ContribOperands:
    one.refuse("key", "value", why="but its query packs query, key and value")
    width = _packed_width(one, packed, heads, 3, "query")
    total_width = heads * width
    query, key, value = add_bias(
        one, one.get("bias"), _unpack(one, packed, 3, total_width), (total_width, total_width, total_width)
    )
    return ContribOperands(query=query, key=key, value=value, head_dim=width, v_head_dim=width, equally_long=True)


def _packed_width(one: ContribNode, packed: ir.Value, heads: int, count: int, name: str) -> int:
    """Width of a head in (batch, length, heads, count, width)."""
    dims = one.search.dims_of(packed) or ()
    if dims[2] not in (None, heads) or dims[3] not in (None, count):
        raise NotReadError(
            f"its {name} has shape (samples, length, {dims[2]}, {dims[3]}, width), "
            f"expected {heads} heads and {count} packed"
        )
    return one.size(packed, -1, name)


def _unpack(one: ContribNode, packed: ir.Value, count: int, width: int) -> list[ir.Value]:
    nodes = one.nodes
    parts = nodes.many("Split", packed, nodes.integers(*([1] * count)), outputs=count, axis=3)
    shape = ir.Shape([None, None, width])
    return [nodes("Reshape", part, nodes.integers(0, 0, width), dtype=packed.dtype, shape=shape) for part in parts]
