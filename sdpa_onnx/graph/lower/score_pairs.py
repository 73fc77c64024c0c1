"""Write pairs of QuantizeLinear and DequantizeLinear that round scores or weights, as a file has them.

Chooses no pair: they are those of the attention that was read.
"""

from collections.abc import Sequence

import onnx_ir as ir

from sdpa_onnx.core.attention.score_quantisers import Quantiser
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.element_types import ELEMENT_TYPES, INTEGER_LIMITS
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.operands import is_exact
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["PAIRS_OF_BFLOAT16", "pairs_refusal", "with_pairs"]

# First opset whose operators have these integers, and scales in half precision. Below it, onnxruntime's own have them.
# Source: ONNX QuantizeLinear, versions 19 and 21; onnxruntime docs/ContribOperators.md, com.microsoft.QuantizeLinear.
_INT8_ONLY_BELOW, _FLOAT32_ONLY_BELOW = 21, 19
# onnxruntime's own operators have no scale in bfloat16.
PAIRS_OF_BFLOAT16 = 19
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


def pairs_refusal(attention: GraphAttention) -> str | None:
    """Why the pairs of an attention cannot be written: a scale that its element type does not have."""
    pairs = attention.quantisers
    for pair in (*pairs.product, *pairs.scaled, *pairs.masked, *pairs.weights):
        if not is_exact(pair.scale, attention.dtype):
            return (
                f"The scale {pair.scale:g} of a QuantizeLinear between its products has no exact value in "
                f"{attention.dtype}."
            )
    return None


def with_pairs(
    nodes: Nodes, value: ir.Value, pairs: Sequence[Quantiser], attention: GraphAttention, *, opset: int
) -> ir.Value:
    """The value after one pair after the other."""
    for pair in pairs:
        kind = next(kind for kind, limits in INTEGER_LIMITS.items() if limits == (pair.lowest, pair.highest))
        half = attention.dtype is Dtype.FLOAT16 and opset < _FLOAT32_ONLY_BELOW
        domain = CONTRIB_DOMAIN if half or (kind not in _BYTES and opset < _INT8_ONLY_BELOW) else ""
        element = ELEMENT_TYPES[attention.dtype]
        parameters = nodes.constant(pair.scale, element), nodes.constant(pair.zero_point, kind)
        integers = nodes("QuantizeLinear", value, *parameters, domain=domain, dtype=kind)
        value = nodes("DequantizeLinear", integers, *parameters, domain=domain, dtype=element)
    return value
