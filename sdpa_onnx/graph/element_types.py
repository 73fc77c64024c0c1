"""Map our dtypes to ONNX element types and back. Converts no values."""

from collections.abc import Mapping

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import Dtype

__all__ = ["DTYPES", "ELEMENT_TYPES"]

# The element types that an attention may have; no other type is supported.
ELEMENT_TYPES: Mapping[Dtype, ir.DataType] = {
    Dtype.FLOAT64: ir.DataType.DOUBLE,
    Dtype.FLOAT32: ir.DataType.FLOAT,
    Dtype.FLOAT16: ir.DataType.FLOAT16,
    Dtype.BFLOAT16: ir.DataType.BFLOAT16,
}
DTYPES: Mapping[ir.DataType, Dtype] = {element: dtype for dtype, element in ELEMENT_TYPES.items()}
