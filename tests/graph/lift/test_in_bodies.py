"""Attention inside the bodies of If, Loop and Scan is read like any other."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.graph.lift.find import find_attentions
from tests.graph.body_models import BODY_MODELS, PLACES, body_model

_MULTI_HEAD = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[B,L,16] q, float[B,S,16] k, float[B,S,16] v, bool c) => (float[B,L,16] y) {
  y = If (c) <
    then_branch = yes () => (a) { a = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) },
    else_branch = no () => (e) { e = Neg (q) }>
}"""
_STANDARD = """<ir_version: 10, opset_import: ["" : 23]>
g (float[B,2,L,8] q, float[B,2,S,8] k, float[B,2,S,8] v, bool c) => (float[B,2,L,8] y) {
  y = If (c) <
    then_branch = yes () => (a) { a = Attention <scale = 0.25> (q, k, v) },
    else_branch = no () => (e) { e = Attention <is_causal = 1> (q, k, v) }>
}"""
_CAUSAL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[B,2,L,8] q, float[B,2,L,8] k, float[B,2,L,8] v, bool c) => (float[B,2,L,8] y)
<int64 whole = {1}, float low = {-3.4028234663852886e38}, float sc = {0.35355338}>
{
  n = Shape <start = 2, end = 3> (q)  nn = Concat <axis = 0> (n, n)  ones = Expand (low, nn)
  y = If (c) <
    then_branch = yes () => (a) {
      upper = Trilu <upper = 1> (ones, whole)
      kt = Transpose <perm = [0, 1, 3, 2]> (k)  s0 = MatMul (q, kt)  s1 = Mul (s0, sc)  s = Add (s1, upper)
      p = Softmax <axis = -1> (s)  a = MatMul (p, v) },
    else_branch = no () => (e) { e = Neg (q) }>
}"""
_IN_A_FUNCTION = """<opset_import: ["" : 17], domain: "own">
Chosen (c, q, k, v) => (y) {
  y = If (c) <then_branch = yes () => (a) {
      kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, kt)  p = Softmax <axis = -1> (s)  a = MatMul (p, v) },
    else_branch = no () => (b) { b = Abs (q) }>
}"""
_CALLER = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[B,2,L,8] q, float[B,2,L,8] k, float[B,2,L,8] v, bool c) => (float[B,2,L,8] y) {
  h = own.Chosen (c, q, k, v)  y = own.Chosen (c, h, k, v)
}"""


def _specs(model: ir.Model) -> list[AttentionSpec]:
    found = find_attentions(model).found
    assert [one.reason for one in found] == [""] * len(found)
    return [one.attention.spec for one in found if one.attention is not None]


@pytest.mark.parametrize("name", BODY_MODELS)
def test_every_one_is_read(name: str) -> None:
    """Heads, width and scale are static, whatever is carried or captured."""
    specs = _specs(body_model(name))
    assert len(specs) == len(PLACES[name])
    scale = np.sqrt(np.float32(0.35355338)) if name == "captured-values" else 0.35355338
    for spec in specs:
        assert (spec.q_num_heads, spec.head_dim) == (2, 8)
        assert spec.scale_value == pytest.approx(scale, rel=1e-6)
        assert spec.mask is (MaskKind.FLOAT if name == "captured-values" else MaskKind.NONE)


def test_names_say_the_place() -> None:
    """From the outermost body to the node."""
    (found,) = find_attentions(body_model("if-in-a-loop")).found
    assert found.attention is not None
    assert found.attention.name == "Loop/y/body/If/hn/then_branch/Softmax/p"


def test_operators_in_branches() -> None:
    """Attention and MultiHeadAttention."""
    first, second = _specs(ir.from_proto(parser.parse_model(_STANDARD)))
    assert (first.scale_value, first.is_causal, second.is_causal) == (0.25, False, True)
    (spec,) = _specs(ir.from_proto(parser.parse_model(_MULTI_HEAD)))
    assert (spec.q_num_heads, spec.head_dim) == (2, 8)


def test_a_mask_in_a_branch_is_proved_causal() -> None:
    """Half of the mask is computed outside, half in the branch; nothing of it depends on the inputs' contents."""
    (found,) = find_attentions(ir.from_proto(parser.parse_model(_CAUSAL))).found
    assert found.attention is not None
    assert found.attention.spec.is_causal


def test_a_branch_in_a_function() -> None:
    """Each call is inlined, so each has a branch of its own."""
    proto = parser.parse_model(_CALLER)
    proto.functions.append(parser.parse_function(_IN_A_FUNCTION))
    assert len(_specs(ir.from_proto(proto))) == 2
