"""Find the lowest ONNX IR version (file format) for an opset. Knows nothing about operators."""

import onnx

__all__ = ["lowest_ir_version"]


def lowest_ir_version(opset: int) -> int:
    """Lowest IR version that allows an opset of the default domain; the newest one for an opset newer than onnx.

    Source: onnx.helper.OP_SET_ID_VERSION_MAP.
    """
    if opset > onnx.defs.onnx_opset_version():
        return onnx.IR_VERSION
    version: int = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    return version
