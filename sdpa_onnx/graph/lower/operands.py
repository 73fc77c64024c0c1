"""Build operands shared by all forms: split heads, concatenated cache, lengths, scale factors. Applies no mask."""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sdpa_onnx.core.attention.inputs import numpy_dtype
from sdpa_onnx.core.attention.spec import Dtype, Layout
from sdpa_onnx.graph.element_types import ELEMENT_TYPES
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.nodes import Nodes

__all__ = [
    "AttentionLengths",
    "FormOperands",
    "element_type",
    "has_equal_lengths",
    "is_exact",
    "join_keys_and_values",
    "join_operands",
    "merge_heads",
    "restore_layout",
    "roots",
    "same_size",
    "scaled",
    "split_heads",
    "stated_size",
]

# Prefix of the names that ONNX shape inference invents for unknown axes.
_INFERRED_AXIS = "unk__"
_HALVES = (Dtype.FLOAT16, Dtype.BFLOAT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOperands:
    """Query, key and value as 4-D BNSH, the cache concatenated before the new keys."""

    query: ir.Value
    key: ir.Value
    value: ir.Value


class AttentionLengths:
    """Lengths of an attention as int64 scalars of the graph, each added once, on first use."""

    def __init__(self, nodes: Nodes, attention: GraphAttention) -> None:
        self._nodes = nodes
        self._attention = attention
        self._axis = attention.spec.layout.length_axis
        self._known: dict[str, ir.Value] = {}

    @property
    def queries(self) -> ir.Value:
        return self._size("queries", self._attention.query, self._axis)

    @property
    def new_keys(self) -> ir.Value:
        """Number of keys in the key input, without the past."""
        return self._size("new", self._attention.key, self._axis)

    @property
    def past(self) -> ir.Value | None:
        """Number of keys in the cache, or None without a cache."""
        cache = self._attention.past_key
        return None if cache is None else self._size("past", cache, 2)

    @property
    def keys(self) -> ir.Value:
        """Number of keys that the softmax runs over: past and new."""
        past = self.past
        if past is None:
            return self.new_keys
        if "keys" not in self._known:
            self._known["keys"] = self._nodes("Add", past, self.new_keys)
        return self._known["keys"]

    @property
    def batch(self) -> ir.Value:
        return self._size("batch", self._attention.query, 0)

    def as_shape(self, *sizes: ir.Value | int) -> ir.Value:
        """A 1-D shape from scalars and numbers, for Expand and Reshape."""
        one = self._nodes.integers(1)
        parts = [
            self._nodes.integers(size) if isinstance(size, int) else self._nodes("Reshape", size, one) for size in sizes
        ]
        return self._nodes("Concat", *parts, axis=0)

    def _size(self, name: str, value: ir.Value, axis: int) -> ir.Value:
        if name not in self._known:
            size = None if value.shape is None else value.shape[axis]
            if isinstance(size, int):
                self._known[name] = self._nodes.constant(size, ir.DataType.INT64)
            else:
                shape = self._nodes("Shape", value, dtype=ir.DataType.INT64)
                self._known[name] = self._nodes("Gather", shape, self._nodes.constant(axis, ir.DataType.INT64), axis=0)
        return self._known[name]


def element_type(dtype: Dtype) -> ir.DataType:
    """The ONNX element type of a dtype."""
    return ELEMENT_TYPES[dtype]


def join_operands(nodes: Nodes, attention: GraphAttention) -> FormOperands:
    """Convert query, key and value to 4-D BNSH and concatenate the cache before the new keys."""
    spec = attention.spec
    key, value = join_keys_and_values(nodes, attention)
    query = split_heads(nodes, attention, attention.query, spec.q_num_heads, spec.head_dim)
    return FormOperands(query=query, key=key, value=value)


def join_keys_and_values(nodes: Nodes, attention: GraphAttention) -> tuple[ir.Value, ir.Value]:
    """Key and value as 4-D BNSH, the cache concatenated before the new ones."""
    spec = attention.spec
    key = split_heads(nodes, attention, attention.key, spec.kv_num_heads, spec.head_dim)
    value = split_heads(nodes, attention, attention.value, spec.kv_num_heads, spec.v_head_dim)
    if attention.past_key is None or attention.past_value is None:
        return key, value
    return nodes("Concat", attention.past_key, key, axis=2), nodes("Concat", attention.past_value, value, axis=2)


def split_heads(nodes: Nodes, attention: GraphAttention, value: ir.Value, heads: int, width: int) -> ir.Value:
    """An input in the attention's layout as (batch, heads, length, width)."""
    if attention.spec.layout is Layout.BNSH:
        return value
    split = nodes("Reshape", value, nodes.integers(0, 0, heads, width))
    return nodes("Transpose", split, perm=[0, 2, 1, 3])


def restore_layout(nodes: Nodes, attention: GraphAttention, value: ir.Value) -> ir.Value:
    """A 4-D output in the attention's layout."""
    return value if attention.spec.layout is Layout.BNSH else merge_heads(nodes, value, *_out(attention))


def merge_heads(nodes: Nodes, value: ir.Value, heads: int, width: int) -> ir.Value:
    """(batch, heads, length, width) as (batch, length, heads * width)."""
    turned = nodes("Transpose", value, perm=[0, 2, 1, 3])
    return nodes("Reshape", turned, nodes.integers(0, 0, heads * width))


def _out(attention: GraphAttention) -> tuple[int, int]:
    return attention.spec.q_num_heads, attention.spec.v_head_dim


def same_size(one: ir.Value, axis: int, other: ir.Value, other_axis: int) -> bool:
    """Whether the graph states that two axes have the same size: the same number or the same name."""
    size = stated_size(one, axis)
    return size is not None and size == stated_size(other, other_axis)


def has_equal_lengths(attention: GraphAttention) -> bool | None:
    """Whether the numbers of new keys and queries are always equal; None = unknown.

    They differ if the graph states different numbers or names, or if both are
    graph inputs without a stated size. For computed values of unknown size the
    answer is unknown.
    """
    axis = attention.spec.layout.length_axis
    query, key = attention.query, attention.key
    sizes = (stated_size(query, axis), stated_size(key, axis))
    if None not in sizes:
        return sizes[0] == sizes[1]
    return False if query.is_graph_input() and key.is_graph_input() else None


def stated_size(value: ir.Value, axis: int) -> int | str | None:
    """The number or the name of an axis; None for a name that ONNX shape inference invented."""
    size = None if value.shape is None else value.shape[axis]
    if size is None or isinstance(size, int):
        return size
    name = size.value
    return None if name is None or name.startswith(_INFERRED_AXIS) else name


def is_exact(number: float, dtype: Dtype) -> bool:
    """Whether to apply a number in this dtype: a factor rounded to half precision is wrong everywhere alike.

    float64 represents it; the rounding of float32, 2^-25, is part of every error bound.
    """
    return dtype not in _HALVES or float(np.asarray(number).astype(numpy_dtype(dtype))) == number


def scaled(nodes: Nodes, value: ir.Value, factor: float, dtype: Dtype) -> ir.Value:
    """Multiply by a number; in float32 if the dtype cannot represent the number exactly."""
    if factor == 1.0:
        return value
    if is_exact(factor, dtype):
        return nodes("Mul", value, nodes.constant(factor, element_type(dtype)))
    wide = nodes("Cast", value, dtype=ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))
    product = nodes("Mul", wide, nodes.constant(factor, ir.DataType.FLOAT))
    return nodes("Cast", product, dtype=element_type(dtype), to=int(element_type(dtype)))


def roots(scale: float) -> tuple[float, float]:
    """Two factors of equal magnitude whose product is the scale; the first has its sign."""
    root = math.sqrt(abs(scale))
    return math.copysign(root, scale), root
