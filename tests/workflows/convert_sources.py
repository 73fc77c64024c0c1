"""Small handwritten source models for `convert`, as other exporters write them: no metadata, no site."""

import numpy as np
import onnx
from onnx import numpy_helper, parser

__all__ = ["WIDTH", "with_ids", "with_padding", "with_projections"]

WIDTH = 16

_PROJECTIONS = """
<ir_version: 8, opset_import: ["" : 18], producer_name: "someone">
block (float[batch, seq, 16] x, bool[batch, 1, 1, seq] keep) => (float[batch, seq, 16] y, int64[batch, seq] best)
<int64[4] apart = {0, 0, 2, 8}, int64[3] together = {0, 0, 16}, float scale = {0.25}, float hidden = {-inf}>
{
    q0 = MatMul (x, wq)
    k0 = MatMul (x, wk)
    v0 = MatMul (x, wv)
    q1 = Reshape (q0, apart)
    k1 = Reshape (k0, apart)
    v1 = Reshape (v0, apart)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)
    kt = Transpose <perm = [0, 2, 3, 1]> (k1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    product = MatMul (q, kt)
    scaled = Mul (product, scale)
    masked = Where (keep, scaled, hidden)
    weights = Softmax <axis = -1> (masked)
    mixed = MatMul (weights, v)
    turned = Transpose <perm = [0, 2, 1, 3]> (mixed)
    merged = Reshape (turned, together)
    projected = MatMul (merged, wo)
    y = Add (projected, bias)
    best = ArgMax <axis = -1, keepdims = 0> (y)
}
"""

_IDS = """
<ir_version: 8, opset_import: ["" : 18]>
lookup (int64[batch, seq] ids, int64[batch, seq] seen) => (float[batch, 2, seq, 8] y)
<int64[4] apart = {0, 0, 2, 8}, float scale = {0.35355338}, float hidden = {-10000.0}, int64[2] axes = {1, 2}>
{
    x = Gather (table, ids)
    x1 = Reshape (x, apart)
    q = Transpose <perm = [0, 2, 1, 3]> (x1)
    kt = Transpose <perm = [0, 2, 3, 1]> (x1)
    product = MatMul (q, kt)
    scaled = Mul (product, scale)
    bit = Cast <to = 9> (seen)
    keep = Unsqueeze (bit, axes)
    masked = Where (keep, scaled, hidden)
    weights = Softmax <axis = -1> (masked)
    y = MatMul (weights, q)
}
"""

_PADDED = """
<ir_version: 8, opset_import: ["" : 18]>
padded (float[batch, 2, seq, 8] q, float[batch, 2, seq, 8] k, float[batch, 2, seq, 8] v, int64[batch, seq] padding)
    => (float[batch, 2, seq, 8] y)
<float nothing = {0.0}, float lowest = {-3.4028234663852886e38}, float scale = {0.25}, int64 zero = {0},
    int64 one = {1}, int64[1] first = {0}, int64[1] last = {-1}, int64[2] middle = {1, 2}>
{
    n = Shape <start: int = 1, end: int = 2> (padding)
    count = Squeeze (n)
    at = Range (zero, count, one)
    j = Unsqueeze (at, first)
    i = Unsqueeze (at, last)
    bits = Cast <to: int = 9> (padding)
    keep = Unsqueeze (bits, middle)
    MASK
    mask = Where (seen, nothing, lowest)
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    product = MatMul (q, kt)
    scaled = Mul (product, scale)
    masked = Add (scaled, mask)
    weights = Softmax <axis = -1> (masked)
    y = MatMul (weights, v)
}
"""


def with_padding(mask: str = "later = LessOrEqual (j, i)  seen = And (later, keep)") -> onnx.ModelProto:
    """Causality and padding in one mask of the lowest number, as torch.onnx writes a language model.

    Args:
        mask: Nodes that compute `seen` from the positions i and j and from `keep`.
    """
    return parser.parse_model(_PADDED.replace("MASK", mask))


def with_projections() -> onnx.ModelProto:
    """Self-attention with its projections, a key mask, and an integer output."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(_PROJECTIONS)
    for name in ("wq", "wk", "wv", "wo"):
        weights = (rng.standard_normal((WIDTH, WIDTH)) * 0.4).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(WIDTH).astype(np.float32), "bias"))
    return model


def with_ids(rows: int = 11) -> onnx.ModelProto:
    """Attention over rows of an embedding table: integer inputs, and finite scores of masked keys."""
    table = np.random.default_rng(0).standard_normal((rows, WIDTH)).astype(np.float32)
    model = parser.parse_model(_IDS)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    return model
