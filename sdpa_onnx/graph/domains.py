"""Operator domains: the default ONNX domain, under either of its names, and onnxruntime's com.microsoft.

Knows no operators.
"""

import onnx_ir as ir

__all__ = ["CONTRIB_DOMAIN", "is_standard"]

CONTRIB_DOMAIN = "com.microsoft"


def is_standard(node: ir.Node) -> bool:
    """Whether a node belongs to the default ONNX domain."""
    return node.domain in ("", "ai.onnx")
