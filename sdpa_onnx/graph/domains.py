"""The operator domains that we read and write: ONNX's own, under either name, and onnxruntime's."""

import onnx_ir as ir

__all__ = ["CONTRIB_DOMAIN", "is_standard"]

CONTRIB_DOMAIN = "com.microsoft"


def is_standard(node: ir.Node) -> bool:
    """Whether a node is of the default domain."""
    return node.domain in ("", "ai.onnx")
