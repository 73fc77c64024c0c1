"""Map our dtypes to ONNX element types and back, and integer types to their limits. Converts no values."""

from collections.abc import Mapping

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import Dtype

__all__ = ["DTYPES", "ELEMENT_TYPES", "INTEGER_LIMITS"]

# The element types that an attention may have; no other type is supported.
ELEMENT_TYPES: Mapping[Dtype, ir.DataType] = {
    Dtype.FLOAT64: ir.DataType.DOUBLE,
    Dtype.FLOAT32: ir.DataType.FLOAT,
    Dtype.FLOAT16: ir.DataType.FLOAT16,
    Dtype.BFLOAT16: ir.DataType.BFLOAT16,
}
DTYPES: Mapping[ir.DataType, Dtype] = {element: dtype for dtype, element in ELEMENT_TYPES.items()}
# Smallest and largest integer of the types of QuantizeLinear.
INTEGER_LIMITS: Mapping[ir.DataType, tuple[int, int]] = {
    kind: (-(2 ** (kind.bitwidth - 1)), 2 ** (kind.bitwidth - 1) - 1) if kind.is_signed() else (0, 2**kind.bitwidth - 1)
    for kind in (
        ir.DataType.INT8,
        ir.DataType.UINT8,
        ir.DataType.INT16,
        ir.DataType.UINT16,
        ir.DataType.INT4,
        ir.DataType.UINT4,
    )
}
