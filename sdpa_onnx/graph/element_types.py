"""Map our dtypes and mask kinds to ONNX element types and back. Converts no values."""

from collections.abc import Mapping

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import Dtype, MaskKind

__all__ = ["DTYPES", "ELEMENT_TYPES", "mask_kind_of"]

# The element types that an attention may have; no other type is supported.
ELEMENT_TYPES: Mapping[Dtype, ir.DataType] = {
    Dtype.FLOAT64: ir.DataType.DOUBLE,
    Dtype.FLOAT32: ir.DataType.FLOAT,
    Dtype.FLOAT16: ir.DataType.FLOAT16,
    Dtype.BFLOAT16: ir.DataType.BFLOAT16,
}
DTYPES: Mapping[ir.DataType, Dtype] = {element: dtype for dtype, element in ELEMENT_TYPES.items()}


def mask_kind_of(mask: ir.Value | None) -> MaskKind:
    """BOOL or FLOAT by the element type of the mask; NONE without a mask."""
    if mask is None:
        return MaskKind.NONE
    return MaskKind.BOOL if mask.dtype is ir.DataType.BOOL else MaskKind.FLOAT
