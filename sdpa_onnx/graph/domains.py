"""Operator domains: the default ONNX domain, under either of its names, and onnxruntime's com.microsoft.

What an operator of the default domain is, onnx's own specifications know.
"""

import onnx
import onnx_ir as ir

__all__ = ["CONTRIB_DOMAIN", "is_standard", "standard_schema"]

CONTRIB_DOMAIN = "com.microsoft"

# onnx looks versions up as 32-bit integers.
_LARGEST_VERSION = 2**31 - 1


def is_standard(node: ir.Node) -> bool:
    """Whether a node belongs to the default ONNX domain."""
    return node.domain in ("", "ai.onnx")


def standard_schema(node: ir.Node, opset: int) -> onnx.defs.OpSchema | None:
    """The specification of an operator of the default ONNX domain; None if onnx has none at this opset.

    Args:
        node: Any node.
        opset: Any number that a file states; onnx itself refuses those above 32 bits.
    """
    known = is_standard(node) and 0 < opset <= _LARGEST_VERSION and onnx.defs.has(node.op_type, opset, "")
    return onnx.defs.get_schema(node.op_type, opset, "") if known else None
