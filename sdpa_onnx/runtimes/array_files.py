"""Arrays to and from a folder that a worker in another environment can read, bfloat16 included."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.runtimes.worker.arrays import Bits, read_bits, write_bits

__all__ = ["from_bits", "read_arrays", "to_bits", "write_arrays"]

Array = NDArray[np.generic]


def write_arrays(folder: Path, arrays: Mapping[str, Array]) -> Path:
    """Write arrays by name into a folder, which is made; give the folder back.

    Raises:
        OSError: If it cannot be written.
    """
    write_bits(folder, to_bits(arrays))
    return folder


def read_arrays(folder: Path) -> dict[str, Array]:
    """Read what `write_arrays`, or a worker, wrote.

    Raises:
        OSError: If a file is missing.
    """
    return from_bits(read_bits(folder))


def to_bits(arrays: Mapping[str, Array]) -> dict[str, Bits]:
    """Each array, or its bits as unsigned integers where the type is none of numpy's own; and the type in ONNX."""
    import onnx_ir as ir

    native = {name: _native(array) for name, array in arrays.items()}
    return {name: (_bits(array), int(ir.DataType.from_numpy(array.dtype).value)) for name, array in native.items()}


def from_bits(arrays: Mapping[str, Bits]) -> dict[str, Array]:
    """The counterpart of `to_bits`; copies nothing."""
    import onnx_ir as ir

    return {name: bits.view(ir.DataType(onnx_type).numpy()) for name, (bits, onnx_type) in arrays.items()}


def _native(array: Array) -> Array:
    """The same in numpy's own form of its type, where it has another order of bytes, or notes on the type."""
    return array if array.dtype.isbuiltin else array.astype(array.dtype.name)


def _bits(array: Array) -> Array:
    return array if array.dtype.isbuiltin == 1 else np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
