"""A softmax in other operators between two products is reported by name, not as a graph without attention."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from sdpa_onnx.graph.lift.find import find_attentions

_TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
attention (float[B,4,L,8] q, float[B,4,S,8] k, float[B,4,S,8] v) => (float[B,4,L,8] y)
<float scale = {0.3}, int64[1] last = {-1}>
{
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  s = MatMul (q, kt)
  x = Mul (s, scale)
  STEPS
  y = MatMul (p, v)
}
"""
_STEPS = {
    "Exp, ReduceSum and Div": "e = Exp (x)  t = ReduceSum <keepdims = 1> (e, last)  p = Div (e, t)",
    "LogSoftmax and Exp": "l = LogSoftmax <axis = -1> (x)  p = Exp (l)",
}


@pytest.mark.parametrize("words", _STEPS)
def test_other_operators(words: str) -> None:
    """Exp over its sum, and the exponential of LogSoftmax."""
    (found,) = find_attentions(ir.from_proto(onnx.parser.parse_model(_TEXT.replace("STEPS", _STEPS[words])))).found
    assert found.attention is None
    assert found.reason.startswith(f"its softmax is computed by {words}, which is not read: node ")


def test_row_maximum_first() -> None:
    """As written for stability."""
    steps = "m = ReduceMax <keepdims = 1> (x, last)  z = Sub (x, m)  " + _STEPS["Exp, ReduceSum and Div"].replace(
        "(x)", "(z)"
    )
    (found,) = find_attentions(ir.from_proto(onnx.parser.parse_model(_TEXT.replace("STEPS", steps)))).found
    assert "Exp, ReduceSum and Div" in found.reason


@pytest.mark.parametrize(
    "steps",
    [
        "e = Exp (x)  t = ReduceSum <keepdims = 1> (x, last)  p = Div (e, t)",  # of other values
        "l = Tanh (x)  p = Exp (l)",
        "e = Exp (x)  p = Mul (e, scale)",
    ],
)
def test_no_softmax(steps: str) -> None:
    """Two products with something else between them are no attention."""
    assert find_attentions(ir.from_proto(onnx.parser.parse_model(_TEXT.replace("STEPS", steps)))).found == ()


def _quantised(softmax: str) -> ir.Model:
    """QLinearMatMul, a softmax of int8 and QLinearMatMul, as onnxruntime's static quantisation writes them."""
    point = ["step", "zero"]
    nodes = [
        helper.make_node("QLinearMatMul", ["q", *point, "k", *point, *point], ["s"], name="scores"),
        helper.make_node(softmax, ["s", *point, *point], ["p"], name="weigh", domain="com.microsoft"),
        helper.make_node("QLinearMatMul", ["p", *point, "v", *point, *point], ["y"], name="mix"),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.INT8, shape)
        for name, shape in (("q", [2, 4, 5, 8]), ("k", [2, 4, 8, 7]), ("v", [2, 4, 7, 8]), ("y", [2, 4, 5, 8]))
    ]
    weights = [numpy_helper.from_array(np.float32(0.1), "step"), numpy_helper.from_array(np.int8(0), "zero")]
    graph = helper.make_graph(nodes, "quantised", values[:3], values[3:], weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=9))


def test_quantised_operators() -> None:
    """QLinearSoftmax between two products is attention; another operator there is not."""
    (found,) = find_attentions(_quantised("QLinearSoftmax")).found
    assert found.reason == "the scores and the weights are quantized: QLinearSoftmax at node weigh"
    assert find_attentions(_quantised("QLinearSigmoid")).found == ()
