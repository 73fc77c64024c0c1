"""ONNX `Attention` nodes to and from specs: the canonical form of every attention.

Reads nodes of opset 23 to 25 and writes one-node models; judges nothing.
"""

import onnx_ir as ir

from sdpa_onnx.core.inputs import ONNX_INPUT_NAMES
from sdpa_onnx.core.spec import AttentionSpec, Dtype, Layout, MaskKind, ScaleRule
from sdpa_onnx.errors import CaseError, ExportError
from sdpa_onnx.graph.site import AttentionSite

__all__ = ["build_attention_model", "minimum_opset", "sites_of_nodes"]

_FIELDS = tuple(ONNX_INPUT_NAMES)
_ELEMENT_TYPES = {
    Dtype.FLOAT64: ir.DataType.DOUBLE,
    Dtype.FLOAT32: ir.DataType.FLOAT,
    Dtype.FLOAT16: ir.DataType.FLOAT16,
    Dtype.BFLOAT16: ir.DataType.BFLOAT16,
}


def minimum_opset(spec: AttentionSpec) -> int:
    """Lowest opset whose Attention operator expresses the spec: 23, 24 or 25.

    Source: ONNX Attention; nonpad_kv_seqlen came with 24, windows with 25.
    """
    if spec.has_window:
        return 25
    return 24 if spec.mask is MaskKind.LENGTHS else 23
