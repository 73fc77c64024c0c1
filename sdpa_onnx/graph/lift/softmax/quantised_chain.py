"""Read the pairs of QuantizeLinear and DequantizeLinear between the two products of an attention.

Refuses, with the node, a pair that one number cannot describe, and an order of nodes that `ScoreQuantisers` has not.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sdpa_onnx.core.attention.score_quantisers import Quantiser, ScoreQuantisers
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN, is_standard
from sdpa_onnx.graph.element_types import INTEGER_LIMITS
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.refused import UnreadReason

__all__ = ["QUANTISING", "QuantisedChain"]

# Neighbouring scores have weights that differ by the factor e^step: 2.7 here. Calibration of a mask of the lowest
# numbers gives 1e36.
_COARSE_STEP = 1.0
_COARSE = "The scores are quantized in steps of {step:.3g}: a smaller difference gives the same weight (node {name})."
QUANTISING = ("QuantizeLinear", "DequantizeLinear")


@dataclass(slots=True, kw_only=True)
class QuantisedChain:
    """The pairs on the path from one product to the other, by stage.

    Args:
        found: The pairs of each stage, in order; the stages are the fields of `ScoreQuantisers`.
        open: The QuantizeLinear whose DequantizeLinear has not come yet.
        warnings: Warnings for the user.
    """

    found: dict[str, list[Quantiser]] = field(default_factory=dict)
    open: Quantiser | None = None
    warnings: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.found) or self.open is not None

    def read(self, search: GraphFacts, node: ir.Node, stage: str) -> UnreadReason | None:
        """Read one node of a pair, which rounds the values of a stage."""
        name, what = search.name_of(node), "weights" if stage == "weights" else "scores"
        quantiser = _parameters(search, node)
        if isinstance(quantiser, UnreadReason):
            return UnreadReason(f"the {what} are quantized, and {quantiser.reason}: {node.op_type} at node {name}")
        if node.op_type == "QuantizeLinear" and self.open is None:
            self.open = quantiser
            return None
        if node.op_type == "QuantizeLinear" or self.open is None:
            return UnreadReason(f"the {what} are quantized by a {node.op_type} without its partner: node {name}")
        if quantiser != self.open:
            differs = _difference(self.open, quantiser)
            return UnreadReason(f"the {what} are quantized with {differs} than they are dequantized: node {name}")
        self.found.setdefault(stage, []).append(quantiser)
        self.open = None
        if what == "scores" and quantiser.scale > _COARSE_STEP:
            self.warnings.append(_COARSE.format(step=quantiser.scale, name=name))
        return None

    def quantisers(self, *, before_mask: str) -> ScoreQuantisers:
        """The pairs as the oracle applies them.

        Args:
            before_mask: The stage of the pairs before any factor: "product" if the scale follows them, "scaled" if
                query or key have it already.
        """
        stages: dict[str, tuple[Quantiser, ...]] = {}
        for stage, pairs in self.found.items():
            name = before_mask if stage == "product" else stage
            stages[name] = (*stages.get(name, ()), *pairs)
        return ScoreQuantisers(**stages)


def _parameters(search: GraphFacts, node: ir.Node) -> Quantiser | UnreadReason:
    """Step, zero point and limits of a node, or why one number is not enough."""
    if not is_standard(node) and node.domain != CONTRIB_DOMAIN:
        return UnreadReason(f"its operator is of domain '{node.domain}'")
    scale, zero = (node.inputs[place] if len(node.inputs) > place else None for place in (1, 2))
    numbers, points, kind = search.constant_of(scale), search.constant_of(zero), _integer_type(node, zero)
    if numbers is None or (zero is not None and points is None):
        return UnreadReason(f"its {'scale' if numbers is None else 'zero point'} is not constant")
    if numbers.size != 1:
        return UnreadReason(f"it has {numbers.size} scales")
    step = float(numbers.astype(np.float64).ravel()[0])
    if not (np.isfinite(step) and step > 0.0):
        return UnreadReason(f"its scale is {step:g}")
    if kind is None or kind not in INTEGER_LIMITS:
        return UnreadReason(f"to {kind.name if kind else 'an unknown type'}, which is not read")
    lowest, highest = INTEGER_LIMITS[kind]
    start = 0 if points is None else int(points.astype(np.int64).ravel()[0])
    return Quantiser(scale=step, zero_point=start, lowest=lowest, highest=highest)


def _integer_type(node: ir.Node, zero: ir.Value | None) -> ir.DataType | None:
    """The integer type of a node: that of its zero point, of its values, else of its attribute or uint8."""
    if zero is not None and zero.dtype is not None:
        return zero.dtype
    value = node.inputs[0] if node.op_type == "DequantizeLinear" else node.outputs[0]
    if value is not None and value.dtype is not None:
        return value.dtype
    attribute = node.attributes.get("output_dtype")
    return ir.DataType(attribute.as_int()) if attribute and attribute.as_int() else ir.DataType.UINT8


def _difference(one: Quantiser, other: Quantiser) -> str:
    """In which parameter two nodes differ."""
    if one.scale != other.scale:
        return f"another scale ({one.scale:g}, not {other.scale:g})"
    if one.zero_point != other.zero_point:
        return f"another zero point ({one.zero_point}, not {other.zero_point})"
    return "another integer type"
