"""Collect constant factors of a value, such as a scale on query or key, and recognise their product as a scale rule.

Rewrites no nodes.
"""

import math
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import Dtype, ScaleRule
from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.element_types import DTYPES
from sdpa_onnx.graph.lift.graph_facts import GraphFacts

__all__ = ["Factor", "factor_of", "scale_of", "unscaled"]

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


def factor_of(search: GraphFacts, node: ir.Node, position: int) -> Factor | None:
    """The constant by which a Mul or Div multiplies its input at `position`; None if it is not a constant scalar."""
    other = node.inputs[1 - position] if node.op_type in ("Mul", "Div") and len(node.inputs) == 2 else None
    dims, own = search.dims_of(other), search.dims_of(node.inputs[position])
    if other is None or dims is None or any(size != 1 for size in dims):
        return None
    number = search.scalar_of(other)
    if number is None or (own is not None and len(dims) > len(own)):
        return None
    doubt = _ROUNDINGS_EACH * _roundoff(other.dtype or ir.DataType.FLOAT)
    match node.op_type:
        case "Mul":
            return Factor(number=number, doubt=doubt)
        case "Div" if position == 0 and number != 0:
            return Factor(number=1 / number, doubt=doubt)
        case _:
            return None


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
