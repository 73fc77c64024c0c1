"""numpy arrays into ONNX Runtime's bindings and back, bfloat16 included.

numpy has no bfloat16 and ONNX Runtime cannot give one to numpy: its bits
travel as uint16, and ml_dtypes names them. Runs nothing.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import SessionError
from sdpa_onnx.runtimes.onnxruntime_import import import_onnxruntime

if TYPE_CHECKING:
    from onnxruntime import IOBinding, OrtValue

__all__ = ["bind_input", "read_arrays"]

Array = NDArray[np.generic]


def bind_input(binding: "IOBinding", name: str, array: Array, *, device: str) -> "OrtValue":
    """Bind one input on "cpu" (no copy) or "cuda" (copied once).

    Returns:
        The memory that the binding points into; it must outlive the binding.
    """
    import onnx_ir as ir

    element = ir.DataType.from_numpy(array.dtype)
    bits = array.view(np.uint16) if element is ir.DataType.BFLOAT16 else array
    value: OrtValue = import_onnxruntime().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(bits), device, 0)
    binding.bind_input(name, device, 0, element.value, list(array.shape), value.data_ptr())
    return value


def read_arrays(names: Sequence[str], values: Sequence["OrtValue"]) -> dict[str, Array]:
    """Copy values to fresh arrays, by name.

    Raises:
        SessionError: If a bfloat16 value lies in device memory.
    """
    return {name: _to_numpy(name, value) for name, value in zip(names, values, strict=True)}


def _to_numpy(name: str, value: "OrtValue") -> Array:
    if value.data_type() != "tensor(bfloat16)":
        return np.array(value.numpy())
    import ml_dtypes

    if value.device_name() != "cpu":
        raise SessionError(
            f"Output '{name}' is bfloat16 in device memory and cannot be read.", hint="Use run() instead of bind()."
        )
    shape = value.shape()
    count = math.prod(shape)
    bits = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else []
    return np.array(bits, dtype=np.uint16).reshape(shape).view(ml_dtypes.bfloat16)
