"""The rotation of queries and keys by their positions as nodes.

Source: Su et al. 2021, RoFormer, section 3.4.2; onnxruntime docs/ContribOperators.md, RotaryEmbedding.
"""

from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.nodes import Nodes

__all__ = ["Rotation", "rotate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """How far each position turns.

    Args:
        cos: (batch or 1, length, 1, pairs).
        sin: The same.
        pairs: Pairs of columns that turn; columns behind them do not.
        interleaved: Pairs are neighbours; otherwise columns of the first and the second half.
    """

    cos: ir.Value
    sin: ir.Value
    pairs: int
    interleaved: bool


def rotate(nodes: Nodes, value: ir.Value, rotation: Rotation, *, heads: int, width: int) -> ir.Value:
    """Turn (batch, length, heads * width) by its positions.

    Args:
        nodes: Where it is written.
        value: Queries or keys.
        rotation: By how much.
        heads: Of the value.
        width: Of one head.
    """
    apart = nodes("Reshape", value, nodes.integers(0, 0, heads, width))
    turning = 2 * rotation.pairs
    if rotation.interleaved:
        first, second = (_columns(nodes, apart, start, turning, 2) for start in (0, 1))
    else:
        middle = rotation.pairs
        first, second = _columns(nodes, apart, 0, middle, 1), _columns(nodes, apart, middle, turning, 1)
    turned = (
        nodes("Sub", nodes("Mul", first, rotation.cos), nodes("Mul", second, rotation.sin)),
        nodes("Add", nodes("Mul", second, rotation.cos), nodes("Mul", first, rotation.sin)),
    )
    if rotation.interleaved:
        pairs = [nodes("Unsqueeze", part, nodes.integers(4)) for part in turned]
        joined = nodes("Reshape", nodes("Concat", *pairs, axis=4), nodes.integers(0, 0, heads, turning))
    else:
        joined = nodes("Concat", *turned, axis=3)
    if turning < width:
        joined = nodes("Concat", joined, _columns(nodes, apart, turning, width, 1), axis=3)
    known = value.shape if value.shape is not None and len(value.shape) == 3 else (None, None)
    shape = ir.Shape([known[0], known[1], heads * width])
    return nodes("Reshape", joined, nodes.integers(0, 0, heads * width), shape=shape)


def _columns(nodes: Nodes, value: ir.Value, start: int, end: int, step: int) -> ir.Value:
    bounds = (nodes.integers(start), nodes.integers(end), nodes.integers(3), nodes.integers(step))
    return nodes("Slice", value, *bounds)
