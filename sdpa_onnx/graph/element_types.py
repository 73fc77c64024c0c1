"""ONNX's words for our element types and kinds of mask, and back; no values are converted."""

from collections.abc import Mapping

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import Dtype, MaskKind

__all__ = ["DTYPES", "ELEMENT_TYPES", "mask_kind_of"]

# An attention's element types; all others are none.
ELEMENT_TYPES: Mapping[Dtype, ir.DataType] = {
    Dtype.FLOAT64: ir.DataType.DOUBLE,
    Dtype.FLOAT32: ir.DataType.FLOAT,
    Dtype.FLOAT16: ir.DataType.FLOAT16,
    Dtype.BFLOAT16: ir.DataType.BFLOAT16,
}
DTYPES: Mapping[ir.DataType, Dtype] = {element: dtype for dtype, element in ELEMENT_TYPES.items()}


def mask_kind_of(mask: ir.Value | None) -> MaskKind:
    """Boolean, float, or NONE without a mask."""
    if mask is None:
        return MaskKind.NONE
    return MaskKind.BOOL if mask.dtype is ir.DataType.BOOL else MaskKind.FLOAT
