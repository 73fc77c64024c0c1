"""Collect constant factors of a value, such as a scale on query or key, and recognise their product as a scale rule.

A factor of one value a head is no scale of the operator; it multiplies the query of the copy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import Dtype, ScaleRule
from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.element_types import DTYPES
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.refused import UnreadReason
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["Factor", "HeadScale", "factor_of", "head_scale_of", "scale_of", "scaled_query", "unscaled"]

# A constant such as sqrt(1/sqrt(d)) is rounded in each of its three steps; a float16 constant once.
_ROUNDINGS_EACH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A product of constants.

    Args:
        number: The product.
        doubt: Approximate largest relative error from the rounding of the constants.
    """

    number: float = 1.0
    doubt: float = 0.0

    def __mul__(self, other: "Factor") -> "Factor":
        return Factor(number=self.number * other.number, doubt=self.doubt + other.doubt)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadScale:
    """A constant of one value a head, by which the scores are multiplied or divided.

    Args:
        node: The node that applies it.
        value: Shape (..., 1, 1): its leading axes are 1 or those of the scores.
        rank: Rank of the scores at that node.
    """

    node: ir.Node
    value: ir.Value
    rank: int


def head_scale_of(search: GraphFacts, node: ir.Node, position: int, rank: int) -> HeadScale | UnreadReason:
    """The constant by which a Mul or Div multiplies the scores of each head.

    Args:
        search: The graph.
        node: The Mul or Div; its input at the position is the scores.
        position: 0 or 1; 0 for Div.
        rank: Rank of the scores.
    """
    value, own, name = node.inputs[1 - position], search.dims_of(node.inputs[position]), search.name_of(node)
    array = search.constant_of(value)
    if value is None or array is None:
        return UnreadReason(f"the scale is not constant: node {name}")
    dims = array.shape
    if own is None or len(own) != rank or dims[-2:] != (1, 1) or not _fits(dims, own):
        return UnreadReason(f"the scale has shape {dims}, which is not one value a head: node {name}")
    with np.errstate(all="ignore"):
        numbers = array.astype(np.float64) if node.op_type == "Mul" else 1 / array.astype(np.float64)
    if not np.isfinite(numbers).all():
        return UnreadReason(f"the scale of a head is not finite: node {name}")
    return HeadScale(node=node, value=value, rank=rank)


def scaled_query(nodes: Nodes, query: ir.Value, scales: Sequence[HeadScale]) -> ir.Value:
    """The query times factors of one value a head, in the element type of the query.

    Args:
        nodes: Builder of the new nodes.
        query: (..., q length, head_dim), of the rank that the scores have at each scale.
        scales: In order.
    """
    for scale in scales:
        own = query.dtype or ir.DataType.FLOAT
        wide = scale.value.dtype or own
        other = query if wide == own else nodes("Cast", query, dtype=wide, to=wide)
        product = nodes(scale.node.op_type, other, scale.value)
        query = product if wide == own else nodes("Cast", product, dtype=own, to=own)
    return query


def factor_of(search: GraphFacts, node: ir.Node, position: int) -> Factor | None:
    """The constant by which a Mul or Div multiplies its input at `position`; None if it is not a constant scalar.

    A constant with one value in every entry is one too, unless it broadcasts the input to more entries.
    """
    other = node.inputs[1 - position] if node.op_type in ("Mul", "Div") and len(node.inputs) == 2 else None
    dims, own = search.dims_of(other), search.dims_of(node.inputs[position])
    if other is None or dims is None or not _fits(dims, own):
        return None
    number = search.scalar_of(other)
    if number is None:
        return None
    doubt = _ROUNDINGS_EACH * _roundoff(other.dtype or ir.DataType.FLOAT)
    match node.op_type:
        case "Mul":
            return Factor(number=number, doubt=doubt)
        case "Div" if position == 0 and number != 0:
            return Factor(number=1 / number, doubt=doubt)
        case _:
            return None


def _fits(dims: Sequence[int | None], own: Sequence[int | None] | None) -> bool:
    """Whether a value of some shape never broadcasts another to more entries; an unknown shape has at least rank 1."""
    if own is None:
        return all(size == 1 for size in dims)
    extra = len(own) - len(dims)
    return extra >= 0 and all(size in (1, kept) and size for size, kept in zip(dims, own[extra:], strict=True))


def unscaled(search: GraphFacts, value: ir.Value) -> tuple[ir.Value, Factor]:
    """Strip trailing Mul and Div by constants from a value; returns the value before them and their product."""
    factor = Factor()
    while (node := value.producer()) is not None and is_standard(node):
        if node.op_type == "Identity" and node.inputs[0] is not None:
            value = node.inputs[0]
            continue
        found = next(
            (
                (entered, more)
                for position, entered in enumerate(node.inputs)
                if entered is not None and (more := factor_of(search, node, position)) is not None
            ),
            None,
        )
        if found is None:
            break
        value, factor = found[0], factor * found[1]
    return value, factor


def scale_of(factor: Factor, head_dim: int) -> float | ScaleRule:
    """The factor as a rule of head_dim if it equals the rule up to the rounding of its constants, else as a number."""
    if factor.number == 1.0:
        return ScaleRule.NONE if head_dim != 1 else ScaleRule.INVERSE_SQRT
    for rule, number in ((ScaleRule.INVERSE_SQRT, 1 / math.sqrt(head_dim)), (ScaleRule.INVERSE, 1 / head_dim)):
        if abs(factor.number - number) <= factor.doubt * number:
            return rule
    return factor.number


def _roundoff(dtype: ir.DataType) -> float:
    """Largest relative error of one rounding in a type; that of float32 for types that attention does not use."""
    return find_precision(DTYPES.get(dtype, Dtype.FLOAT32)).output.unit_roundoff
