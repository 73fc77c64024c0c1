"""Build rotary position embedding of queries and keys as nodes. Does not compute the angles.

Source: Su et al. 2021, RoFormer, section 3.4.2; onnxruntime docs/ContribOperators.md, RotaryEmbedding.
"""

from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.nodes import Nodes

__all__ = ["Rotation", "rotate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """The rotation of each position.

    Args:
        cos: (batch or 1, length, 1, pairs).
        sin: (batch or 1, length, 1, pairs).
        pairs: Number of column pairs that are rotated; later columns are not.
        interleaved: True: a pair is two adjacent columns. False: one column of each half.
    """

    cos: ir.Value
    sin: ir.Value
    pairs: int
    interleaved: bool


def rotate(nodes: Nodes, value: ir.Value, rotation: Rotation, *, heads: int, width: int) -> ir.Value:
    """Rotate (batch, length, heads * width) by positions.

    Args:
        nodes: Node builder.
        value: Queries or keys.
        rotation: The rotation of each position.
        heads: Number of heads of the value.
        width: Width of one head.
    """
    apart = nodes("Reshape", value, nodes.integers(0, 0, heads, width))
    rotated_width = 2 * rotation.pairs
    if rotation.interleaved:
        first, second = (_columns(nodes, apart, start, rotated_width, 2) for start in (0, 1))
    else:
        middle = rotation.pairs
        first, second = _columns(nodes, apart, 0, middle, 1), _columns(nodes, apart, middle, rotated_width, 1)
    rotated = (
        nodes("Sub", nodes("Mul", first, rotation.cos), nodes("Mul", second, rotation.sin)),
        nodes("Add", nodes("Mul", second, rotation.cos), nodes("Mul", first, rotation.sin)),
    )
    if rotation.interleaved:
        pairs = [nodes("Unsqueeze", part, nodes.integers(4)) for part in rotated]
        joined = nodes("Reshape", nodes("Concat", *pairs, axis=4), nodes.integers(0, 0, heads, rotated_width))
    else:
        joined = nodes("Concat", *rotated, axis=3)
    if rotated_width < width:
        joined = nodes("Concat", joined, _columns(nodes, apart, rotated_width, width, 1), axis=3)
    known = value.shape if value.shape is not None and len(value.shape) == 3 else (None, None)
    shape = ir.Shape([known[0], known[1], heads * width])
    return nodes("Reshape", joined, nodes.integers(0, 0, heads * width), shape=shape)


def _columns(nodes: Nodes, value: ir.Value, start: int, end: int, step: int) -> ir.Value:
    bounds = (nodes.integers(start), nodes.integers(end), nodes.integers(3), nodes.integers(step))
    return nodes("Slice", value, *bounds)
