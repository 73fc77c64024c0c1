"""Heads that are mixed before or after the softmax are named as the reason; a bias or a guard is none."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.found import NAN_ROWS, FoundAttention

_TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
attention (float[B,2,L,8] q, float[B,2,S,8] k, float[B,2,S,8] v, bool[B,1,L,S] m, float[B,4,L,S] pairs)
  => (float[B,2,L,8] y)
<float scale = {0.35}, float zero = {0.0}, float one = {1.0}, float large = {3.4e38},
 float[2,2] mix = {0.6, 0.4, 0.3, 0.7}, float[2,2,1,1] kernel = {0.6, 0.4, 0.3, 0.7},
 float[2,4,1,1] of_pairs = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}>
{
  flip = Transpose <perm = [0, 1, 3, 2]> (k)
  s0 = MatMul (q, flip)
  s1 = Mul (s0, scale)
  STEPS
}
"""
_SOFTMAX = "s2 = Where (m, s1, infinite)  p = Softmax <axis = -1> (s2)"
_IN = "t = Transpose <perm = [0, 2, 3, 1]> (s1)  u = MatMul (t, mix)  s2 = Transpose <perm = [0, 3, 1, 2]> (u)"
_OUT = "t2 = Transpose <perm = [0, 2, 3, 1]> (p)  u2 = MatMul (t2, mix)  w = Transpose <perm = [0, 3, 1, 2]> (u2)"
_EINSUM = '<equation = "bhij,hg->bgij">'


def found_in(steps: str) -> FoundAttention:
    proto = onnx.parser.parse_model(_TEXT.replace("STEPS", steps))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(-np.inf), "infinite"))
    (found,) = find_attentions(ir.from_proto(proto)).found
    return found


MIXED = {
    "MatMul before": (f"{_IN}  p = Softmax <axis = -1> (s2)  y = MatMul (p, v)", "before", "node MatMul/u"),
    "MatMul after": (f"p = Softmax <axis = -1> (s1)  {_OUT}  y = MatMul (w, v)", "after", "node MatMul/u2"),
    "MatMul twice": (
        f"{_IN}  p = Softmax <axis = -1> (s2)  {_OUT}  y = MatMul (w, v)",
        "before and after",
        "node MatMul/u and node MatMul/u2",
    ),
    "Conv before": (
        "s2 = Conv (s1, kernel)  p = Softmax <axis = -1> (s2)  y = MatMul (p, v)",
        "before",
        "node Conv/s2",
    ),
    "Conv after": ("p = Softmax <axis = -1> (s1)  w = Conv (p, kernel)  y = MatMul (w, v)", "after", "node Conv/w"),
    "mask behind a Conv": (
        "x = Conv (s1, kernel)  s2 = Where (m, x, infinite)  p = Softmax <axis = -1> (s2)  y = MatMul (p, v)",
        "before",
        "node Conv/x",
    ),
    "Einsum before": (
        f"s2 = Einsum {_EINSUM} (s1, mix)  p = Softmax <axis = -1> (s2)  y = MatMul (p, v)",
        "before",
        "node Einsum/s2",
    ),
    "Einsum after": (
        f"p = Softmax <axis = -1> (s1)  w = Einsum {_EINSUM} (p, mix)  y = MatMul (w, v)",
        "after",
        "node Einsum/w",
    ),
}
GUARDED = {
    "IsNaN": "n = IsNaN (p)  w = Where (n, zero, p)",
    "no NaN": "n = IsNaN (p)  nn = Not (n)  w = Where (nn, p, zero)",
    "equal to itself": "e = Equal (p, p)  w = Where (e, p, zero)",
    "nan_to_num": (
        "n = IsNaN (p)  a = Where (n, zero, p)  lower = Less (p, zero)  far = IsInf (p)  low = And (lower, far)"
        "  b = Where (low, zero, a)  upper = Greater (p, zero)  high = And (upper, far)  w = Where (high, large, b)"
    ),
    "nan_to_num of each result": (
        "n = IsNaN (p)  a = Where (n, zero, p)  d = Cast <to = 11> (a)  far = IsInf (d)  upper = Greater (a, zero)"
        "  high = And (far, upper)  b = Where (high, large, a)  g = IsInf <detect_positive = 0> (b)"
        "  w = Where (g, zero, b)"
    ),
}
NO_GUARD = {
    "NaN becomes 1": "n = IsNaN (p)  w = Where (n, one, p)",
    "NaN of other values": "n = IsNaN (s0)  w = Where (n, zero, p)",
    "weights above a number": "n = Greater (p, scale)  w = Where (n, zero, p)",
    "weights that are infinite or large": (
        "far = IsInf (p)  large_too = Greater (p, scale)  n = Or (far, large_too)  w = Where (n, zero, p)"
    ),
    "the scores are infinite": "n = IsInf (s2)  w = Where (n, large, p)",
}


@pytest.mark.parametrize(("steps", "place", "nodes"), MIXED.values(), ids=MIXED)
def test_mixed_heads_are_named(steps: str, place: str, nodes: str) -> None:
    """The reason names the mix and its nodes, wherever it is."""
    found = found_in(steps)
    assert found.attention is None
    assert found.reason == f"its heads are mixed {place} the softmax (talking heads), and no form does that: {nodes}"


def test_a_bias_of_mixed_channels_is_a_mask() -> None:
    """A convolution of other values, added to the scores, mixes no heads."""
    found = found_in(
        "bias = Conv (pairs, of_pairs)  s2 = Add (s1, bias)  p = Softmax <axis = -1> (s2)  y = MatMul (p, v)"
    )
    assert found.attention is not None
    assert found.attention.attn_mask is not None


@pytest.mark.parametrize("guard", GUARDED.values(), ids=GUARDED)
def test_guards_of_nan_rows_are_read(guard: str) -> None:
    """A row without a visible key is 0, in the source as in every form, so no warning is printed."""
    found = found_in(f"{_SOFTMAX}  {guard}  y = MatMul (w, v)")
    assert found.attention is not None, found.reason
    assert found.warnings == ()


def test_without_a_guard() -> None:
    """The same attention without a guard has the warning."""
    assert found_in(f"{_SOFTMAX}  y = MatMul (p, v)").warnings == (NAN_ROWS,)


@pytest.mark.parametrize("guard", NO_GUARD.values(), ids=NO_GUARD)
def test_what_changes_other_weights_is_no_guard(guard: str) -> None:
    """The attention is refused with the node that changes weights."""
    found = found_in(f"{_SOFTMAX}  {guard}  y = MatMul (w, v)")
    assert found.attention is None
    assert "node Where/w" in found.reason
