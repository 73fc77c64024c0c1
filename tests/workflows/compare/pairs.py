"""Layers with attention, in pairs that compute different functions, or the same function in other words.

Each layer takes x (b, s, 32), a float mask `hide` (b, s) and a boolean one `keep` (b, s). Some pairs differ only beyond
a length.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

__all__ = ["DIFFERENT", "SAME", "Layer", "inputs"]

_WIDTH, _HEADS = 32, 4
_TEXT = """<ir_version: 10, opset_import: ["": {opset}]>
layer (float[b, s, 32] x, float[b, s] hide, bool[b, s] keep) => (float[b, s, 32] y) {{
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    first = Constant <value_ints = [0]> ()
    second = Constant <value_ints = [1]> ()
    third = Constant <value_ints = [2]> ()
    all = Constant <value_ints = [9223372036854775807]> ()
    heads = Constant <value_ints = [0, 0, 4, 8]> ()
    flat = Constant <value_ints = [0, 0, 32]> ()
    off = Constant <value_float = 0.0> ()
    lowest = Constant <value_float = -1e30> ()
    shape = Shape <start = 1, end = 2> (x)
    length = Squeeze (shape, first)
    at = Range (zero, length, one)
    i = Unsqueeze (at, one)
    j = Unsqueeze (at, zero)
    back = Sub (i, j)
    seen = GreaterOrEqual (back, zero)
    q0 = MatMul (x, wq)
    k0 = MatMul (x, wk)
    v0 = MatMul (x, wv)
    q1 = Reshape (q0, heads)
    k1 = Reshape (k0, heads)
    v1 = Reshape (v0, heads)
    q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
    k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
    v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
    {keys}
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    raw = MatMul (q2, kt)
    {scale}
    scores = Mul (raw, factor)
    {bias}
    biased = Add (scores, bias)
    weights = Softmax <axis = -1> (biased)
    mixed = MatMul (weights, v)
    {out}
    o1 = Transpose <perm = [0, 2, 1, 3]> (o)
    y = Reshape (o1, flat)
}}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The parts of a layer, as ONNX text: `keys` makes k and v, `scale` factor, `bias` bias, `out` o."""

    keys: str = "k = Identity (k2) v = Identity (v2)"
    scale: str = "factor = Constant <value_float = 0.35355338> ()"
    bias: str = "bias = Where (seen, off, lowest)"
    out: str = "o = Identity (mixed)"
    opset: int = 18

    def save(self, path: Path) -> Path:
        """Write the file; every layer has the same weights."""
        parts = {name: getattr(self, name) for name in ("keys", "scale", "bias", "out")}
        model = onnx.parser.parse_model(_TEXT.format(opset=self.opset, **parts))
        rng = np.random.default_rng(5)
        arrays = {name: rng.standard_normal((_WIDTH, _WIDTH)).astype(np.float32) / 4 for name in ("wq", "wk", "wv")}
        arrays |= {
            "slopes": np.float32([[[0.5]], [[0.25]], [[0.12]], [[0.06]]]),
            "band": _table(64),
            "tri": _table(512),
        }
        arrays |= {"reverse": np.array([3, 2, 1, 0]), "swap": np.array([1, 0, 2, 3])}
        arrays |= {"grouped": np.array([0, 0, 1, 1]), "tiled": np.array([0, 1, 0, 1])}
        arrays |= {"warm": np.float32([[[0.3]], [[0.35]], [[0.4]], [[0.45]]])}
        used = " ".join(name for node in model.graph.node for name in node.input).split()
        tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used]
        model.graph.initializer.extend(tensors)
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path


def _table(window: int) -> NDArray[np.bool_]:
    """A stored mask for up to 512 positions."""
    back = np.arange(512)[:, None] - np.arange(512)[None, :]
    return (back >= 0) & (back < window)


def inputs(path: Path, length: int = 200) -> Path:
    """Arrays of two samples; the second is padded at its end."""
    rng = np.random.default_rng(8)
    keep = np.ones((2, length), np.bool_)
    keep[1, -40:] = False
    hide = np.where(keep, 0.0, -5.0).astype(np.float32)
    np.savez(path, x=rng.standard_normal((2, length, _WIDTH)).astype(np.float32), hide=hide, keep=keep)
    return path


def _window(size: int) -> str:
    return f"w = Constant <value_int = {size}> () n = Less (back, w) s2 = And (seen, n) bias = Where (s2, off, lowest)"


def _stored(name: str) -> str:
    return (
        f"t1 = Slice ({name}, first, shape, first) t2 = Slice (t1, first, shape, second) bias = Where (t2, off, lowest)"
    )


def _alibi(distance: str, slopes: str = "s1 = Identity (slopes)") -> str:
    return f"{distance} {slopes} f = Cast <to = 1> (d) p = Mul (f, s1) m = Where (seen, off, lowest) bias = Sub (m, p)"


def _clipped(most: int) -> str:
    return _alibi(f"c = Constant <value_int = {most}> () d = Min (back, c)")


def _picked(indices: str) -> str:
    return f"k = Gather <axis = 1> (k2, {indices}) v = Gather <axis = 1> (v2, {indices})"


_PLAIN = Layer()
_SEEN_ALL = Layer(bias="bias = Identity (off)")
_PADDED = "h = Unsqueeze (hide, second) h2 = Unsqueeze (h, second) m = Where (seen, off, lowest) bias = Add (m, h2)"
_KEPT = "h = Unsqueeze ({mask}, second) h2 = Unsqueeze (h, second) s2 = And (seen, h2) bias = Where (s2, off, lowest)"
_LAST = "n = Constant <value_ints = [-{most}]> () k = Slice (k2, n, all, third) v = Slice (v2, n, all, third)"
_FIRST = "n = Constant <value_ints = [{most}]> () k = Slice (k2, first, n, third) v = Slice (v2, first, n, third)"
_LOG = """l1 = Cast <to = 1> ({length}) l2 = Log (l1) t = Constant <value_float = 0.08> () factor = Mul (l2, t)"""

# By kind: pairs of different functions.
DIFFERENT: dict[str, tuple[Layer, Layer]] = {
    "window: lost": (Layer(bias=_window(64)), _PLAIN),
    "window: another": (Layer(bias=_window(64)), Layer(bias=_window(96))),
    "window: off by one": (Layer(bias=_window(100)), Layer(bias=_window(101))),
    "window: lost in a stored mask": (Layer(bias=_stored("band")), Layer(bias=_stored("tri"))),
    "window: chunks instead": (
        Layer(bias=_window(64)),
        Layer(
            bias="""c = Constant <value_int = 64> () a = Div (i, c) b2 = Div (j, c) e = Equal (a, b2) s2 = And (seen, e)
            bias = Where (s2, off, lowest)"""
        ),
    ),
    "mask: not causal": (_PLAIN, _SEEN_ALL),
    "mask: one key too many": (
        _PLAIN,
        Layer(bias="m = Neg (one) s2 = GreaterOrEqual (back, m) bias = Where (s2, off, lowest)"),
    ),
    "mask: padding ignored": (Layer(bias=_PADDED), _PLAIN),
    "mask: that of the first sample": (
        Layer(bias=_KEPT.format(mask="keep")),
        Layer(bias="only = Slice (keep, first, second, first) " + _KEPT.format(mask="only")),
    ),
    "mask: a prefix seen by all": (
        _PLAIN,
        Layer(bias="c = Constant <value_int = 32> () n = Less (j, c) s2 = Or (seen, n) bias = Where (s2, off, lowest)"),
    ),
    "scale: a little": (_PLAIN, Layer(scale="factor = Constant <value_float = 0.36> ()")),
    "scale: none": (_PLAIN, Layer(scale="factor = Constant <value_float = 1.0> ()")),
    "scale: fixed at one length": (
        Layer(scale=_LOG.format(length="length")),
        Layer(scale="f16 = Constant <value_int = 16> () " + _LOG.format(length="f16")),
    ),
    "scale: stops growing": (
        Layer(scale=_LOG.format(length="length")),
        Layer(scale="most = Constant <value_int = 160> () lm = Min (length, most) " + _LOG.format(length="lm")),
    ),
    "scale: one for all heads": (Layer(scale="factor = Identity (warm)"), _PLAIN),
    "heads: keys in another order": (_PLAIN, Layer(keys="k = Gather <axis = 1> (k2, reverse) v = Identity (v2)")),
    "heads: groups tiled": (Layer(keys=_picked("grouped")), Layer(keys=_picked("tiled"))),
    "heads: two outputs swapped": (_PLAIN, Layer(out="o = Gather <axis = 1> (mixed, swap)")),
    "heads: slopes in another order": (
        Layer(bias=_alibi("d = Identity (back)")),
        Layer(bias=_alibi("d = Identity (back)", "s1 = Gather <axis = 0> (slopes, reverse)")),
    ),
    "capacity: the last keys kept": (_SEEN_ALL, replace(_SEEN_ALL, keys=_LAST.format(most=100))),
    "capacity: the first keys kept": (_SEEN_ALL, replace(_SEEN_ALL, keys=_FIRST.format(most=150))),
    "capacity: distances clipped": (Layer(bias=_alibi("d = Identity (back)")), Layer(bias=_clipped(120))),
    "capacity: distances clipped elsewhere": (Layer(bias=_clipped(48)), Layer(bias=_clipped(96))),
}

# Pairs of the same function.
SAME: dict[str, tuple[Layer, Layer]] = {
    "another opset": (_PLAIN, Layer(opset=21)),
    "the window by other words": (
        Layer(bias=_window(64)),
        Layer(
            bias="""w = Constant <value_int = 63> () far = Sub (i, w) n = GreaterOrEqual (j, far) s2 = And (n, seen)
            bias = Where (s2, off, lowest)"""
        ),
    ),
    "the factor on queries and keys": (
        _PLAIN,
        Layer(
            keys="f = Constant <value_float = 0.35355338> () k = Mul (k2, f) v = Identity (v2)",
            scale="factor = Constant <value_float = 1.0> ()",
        ),
    ),
    "a clip that nothing reaches": (Layer(bias=_alibi("d = Identity (back)")), Layer(bias=_clipped(100000))),
    "groups without a gather of values": (
        Layer(keys=_picked("grouped")),
        Layer(keys=_picked("grouped"), opset=20),
    ),
}
