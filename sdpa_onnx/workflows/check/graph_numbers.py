"""Numbers in a graph: scalars that may be a scale, whole numbers that may be a size it was traced at.

Reads constants only, and does not follow what they are used for.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel

__all__ = ["likely_sizes", "scalar_constants"]

# A constant with more elements is a weight.
_SMALL = 16
_LONGEST = 1 << 16


def scalar_constants(model: OnnxModel) -> list[float]:
    """Every constant that is a single floating-point number, each once."""
    found = (float(array.reshape(-1)[0]) for array in _constants(model) if array.dtype.kind == "f" and array.size == 1)
    return list(dict.fromkeys(found))


def likely_sizes(model: OnnxModel) -> list[int]:
    """Whole numbers from 2 on in small constants, and the last axes of constants that may be masks."""
    found: list[int] = []
    for array in _constants(model):
        if array.dtype.kind in "iu" and array.size <= _SMALL:
            found += [int(number) for number in array.reshape(-1)]
        elif array.ndim >= 2:
            found += array.shape[-2:]
    return [size for size in dict.fromkeys(found) if 1 < size <= _LONGEST]


def _constants(model: OnnxModel) -> Iterator[NDArray[np.generic]]:
    for value in model.ir.graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype is not ir.DataType.STRING:
            yield value.const_value.numpy()
    for node in model.ir.graph.all_nodes():
        if node.op_type == "Constant" and node.domain == "":
            yield from _of_node(node)


def _of_node(node: ir.Node) -> Iterator[NDArray[np.generic]]:
    for attribute in node.attributes.values():
        match attribute.type:
            case ir.AttributeType.TENSOR:
                yield attribute.as_tensor().numpy()
            case ir.AttributeType.FLOAT | ir.AttributeType.INT | ir.AttributeType.INTS | ir.AttributeType.FLOATS:
                yield np.asarray(attribute.value)
            case _:
                continue
