"""Shapes and types that the inference of a graph loses are inferred node by node from those that are found."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.node_shapes import KnownInput, output_types
from sdpa_onnx.graph.lift.sizes import SymbolicSize
from tests.graph.lift.judged import judge_all

# The heads as paddle2onnx splits them: the target is joined from casted pieces, so ONNX infers no rank.
_TEXT = """
<ir_version: 8, opset_import: ["" : %d]>
g (float[N, L, 24] x) => (float y)
<int64[1] minus = {-1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3},
 int64[1] width = {4}, float scale = {0.5}>
{
    shape = Shape (x)
    narrow = Cast <to = 6> (shape)
    batch32 = Slice (narrow, zero, one, zero)
    length32 = Slice (narrow, one, two, zero)
    batch = Cast <to = 7> (batch32)
    length = Cast <to = 7> (length32)
    target = Concat <axis = 0> (batch, length, three, two, width)
    split = Reshape (x, target)
    moved = Transpose <perm = [2, 0, 3, 1, 4]> (split)
    q1 = Slice (moved, zero, one, zero)
    k1 = Slice (moved, one, two, zero)
    v1 = Slice (moved, two, three, zero)
    %s
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    s = MatMul (q, kt)
    scaled = Mul (s, scale)
    p = Softmax <axis = -1> (scaled)
    y = MatMul (p, v)
}
"""
_OLD = "q = Squeeze <axes = [0]> (q1)  k = Squeeze <axes = [0]> (k1)  v = Squeeze <axes = [0]> (v1)"
_NEW = "q = Squeeze (q1, zero)  k = Squeeze (k1, zero)  v = Squeeze (v1, zero)"
_MEAN = "m = ReduceMean <axes = [-1], keepdims = 1> (q1)  c = Sub (q1, m)"
_STEPS = {
    "as-paddle-writes": (12, _OLD),
    "newer": (17, _NEW),
    "power": (17, f"e = Pow (q1, scale)  {_NEW.replace('(q1', '(e')}"),
    "mean": (12, f"{_MEAN}  {_OLD.replace('(q1)', '(c)')}"),
    "pad": (17, f"w = Split <axis = -1> (q1)  {_NEW.replace('(q1', '(w')}"),
    "relu": (17, f"r = Relu (k1)  f = Floor (r)  {_NEW.replace('(k1', '(f')}"),
}


@pytest.mark.parametrize("name", _STEPS)
def test_the_rank_is_found(name: str) -> None:
    """The attention is read, and the values there are those of what was read."""
    model = ir.from_proto(parser.parse_model(_TEXT % _STEPS[name]))
    findings = find_attentions(model)
    (found,) = findings.found
    assert found.attention is not None, found.reason
    spec = found.attention.spec
    assert (spec.q_num_heads, spec.head_dim, spec.v_head_dim) == (2, 4, 4)
    feeds = {"x": np.random.default_rng(1).uniform(0.1, 2, (2, 5, 24)).astype(np.float32)}
    (agreement,) = judge_all(findings, feeds)
    assert agreement.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL), agreement.diagnosis


def _node(text: str, inputs: str) -> ir.Node:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float y) {{ {text} }}')
    return ir.from_proto(model).graph.node(-1)


def test_a_symbol_comes_back() -> None:
    """A size that the operator keeps is the symbol that went in, also an expression; a new one is unknown."""
    length = SymbolicSize(("axis", "L"))
    known = KnownInput(dtype=ir.DataType.FLOAT16, sizes=(length * 2, length, 6))
    (found,) = output_types(_node("y = ReduceMax <axes = [1]> (x)", "float[a, b, c] x"), {"": 17}, [known])
    assert found is not None
    assert (found.dtype, found.sizes) == (ir.DataType.FLOAT16, (length * 2, 1, 6))
    (found,) = output_types(_node("y = NonZero (x)", "float[a, b, c] x"), {"": 17}, [known])
    assert found is not None
    assert (found.dtype, found.sizes) == (ir.DataType.INT64, (3, None))


def test_what_cannot_be_inferred_is_unknown() -> None:
    """Axes that the input does not have, and operators that ONNX does not know."""
    known = KnownInput(dtype=ir.DataType.FLOAT, sizes=(2, 3))
    assert output_types(_node("y = Concat <axis = 7> (x, x)", "float[a, b] x"), {"": 17}, [known, known]) == [None]
    node = ir.node("Unheard", [ir.Value(name="x")])
    assert output_types(node, {"": 17}, [known]) == [None]
    assert onnx.defs.has("Concat", 17, "")
