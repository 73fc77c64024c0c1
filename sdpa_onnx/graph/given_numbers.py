"""Numbers that a caller gives for an input whose contents decide shapes, such as a head count; kept with the value.

The graph stays as it is: readers of shapes and constants know the number, and the input is fed with it.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.subgraphs import inputs_within

__all__ = ["deciding_inputs", "give", "given_number", "is_single"]

_KEY = "sdpa_onnx.given"
# Between an operand of an attention and the node that splits its heads.
_MOST_NODES = 40
_SIZES = frozenset({"Shape", "Size"})


def give(value: ir.Value, numbers: "NDArray[np.generic]") -> None:
    """State the contents of an input of the graph."""
    value.meta[_KEY] = numbers


def given_number(value: ir.Value) -> "NDArray[np.generic] | None":
    """The contents that were given for an input, or None."""
    found: NDArray[np.generic] | None = value.meta.get(_KEY)
    return found


def is_single(value: ir.Value) -> bool:
    """Whether a value is one integer."""
    sizes = () if value.shape is None else tuple(value.shape)
    return value.shape is not None and value.dtype is not None and value.dtype.is_integer() and set(sizes) <= {1}


def deciding_inputs(graph: ir.Graph, value: ir.Value) -> Iterator[ir.Value]:
    """Integer inputs of the graph whose contents decide the shape of a value, those of the nearest node."""
    waiting = [value]
    for one in waiting:  # grows
        node = one.producer()
        if node is None or len(waiting) > _MOST_NODES:
            continue
        shapes = [given for given in node.inputs[1:] if given is not None and given.dtype is ir.DataType.INT64]
        found = {source for shape in shapes for source in _sources(shape) if source in graph.inputs}
        if found:
            yield from sorted(found, key=lambda source: source.name or "")
            return
        waiting += [
            given for given in node.inputs if given is not None and given not in shapes and given not in waiting
        ]


def _sources(value: ir.Value) -> Iterator[ir.Value]:
    """The integers that a shape is computed from, without those of which only the sizes count."""
    seen, waiting = {value}, [value]
    while waiting:
        one = waiting.pop()
        node = one.producer()
        if node is None and one.const_value is None and one.dtype is not None and one.dtype.is_integer():
            yield one
        if node is not None and node.op_type not in _SIZES:
            new = set(inputs_within(node)) - seen
            seen |= new
            waiting += new
