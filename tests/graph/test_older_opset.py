"""Raise opset 7 and later to 18, one node at a time: the same outputs, and everything else unchanged."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser
from onnx_ir.passes.common import ShapeInferencePass

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.files.external_data import FileTensor
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.graph.older_opset import raise_older
from sdpa_onnx.graph.quiet import quiet_ir

_BLOCK = """
<ir_version: 8, opset_import: ["" : %d, "com.microsoft" : 1, "own" : 1], metadata_props: ["who" : "someone"]>
block (float[batch, 4, 6] x, bool flag) => (float[batch, 4, 3] y, float[batch, 4, 3] z, float other)
{
    mean = ReduceMean <axes = [-1], keepdims = 1> (x)
    squares = ReduceL2 <axes = [1], keepdims = 1> (x)
    whole = ReduceMax <keepdims = 0> (x)
    plain = Sub (x, mean)
    normed = Div (plain, squares)
    gelu = com.microsoft.Gelu (normed)
    weighted = MatMul (gelu, w)
    y, kept = Split <axis = -1> (weighted)
    z = own.halved (kept)
    other = If (flag) <
        then_branch = then () => (float r) { r = ReduceSumSquare <keepdims = 0> (x) },
        else_branch = else () => (float r) { r = Identity (whole) }
    >
}
<domain: "own", opset_import: ["" : %d]>
halved (a) => (b)
{
    m = ReduceProd <axes = [0], keepdims = 1> (a)
    b = Sub (a, m)
}
"""


def _source(opset: int) -> onnx.ModelProto:
    source = parser.parse_model(_BLOCK % (opset, opset))
    weights = np.random.default_rng(3).standard_normal((6, 6)).astype(np.float32)
    source.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    source.graph.node[0].metadata_props.add(key="from", value="layer")
    return source


def _outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(5).standard_normal((2, 4, 6)).astype(np.float32)
    return [out for flag in (True, False) for out in session.run(None, {"x": x, "flag": np.array(flag)})]


@pytest.mark.parametrize("opset", [13, 15, 17])
def test_the_raised_graph_gives_the_same(opset: int) -> None:
    """Axes and split sizes that became inputs or attributes, in branches and functions too."""
    source = _source(opset)
    model = ir.from_proto(source)
    with quiet_ir():
        raise_older(model, 18)
    raised = ir.to_proto(model)
    onnx.checker.check_model(raised)
    assert {one.domain: one.version for one in raised.opset_import}[""] == 18
    for before, after in zip(_outputs(source), _outputs(raised), strict=True):
        np.testing.assert_array_equal(before, after)


_OLD = """
<ir_version: 4, opset_import: ["" : %d]>
g (float[n, 4, 6] x) => (float[n, 4, 6] y)
{
%s
}
"""
# The lowest opset, and nodes whose operators were changed since.
_OLD_NODES = {
    "several-axes": (7, "y = Softmax <axis = 1> (x)"),
    "default-axis": (11, "y = Softmax (x)"),
    "negative-axis": (11, "y = LogSoftmax <axis = -2> (x)"),
    "axes": (7, "u = Unsqueeze <axes = [0, 2]> (x)  s = Squeeze <axes = [0, 2]> (u)  y = Abs (s)"),
    "sum": (7, "m = ReduceSum <axes = [-1], keepdims = 1> (x)  y = Sub (x, m)"),
    "split": (7, "a, b = Split <axis = 2, split = [2, 4]> (x)  y = Concat <axis = 2> (b, a)"),
    "clip": (7, "y = Clip <min = -0.5, max = 0.25> (x)"),
    "slice": (7, "s = Slice <axes = [2], starts = [1], ends = [6]> (x)  y = Pad <pads = [0, 0, 1, 0, 0, 0]> (s)"),
    "dropout": (7, "d = Dropout <ratio = 0.5> (x)  y = Neg (d)"),
    "top": (7, "t, at = TopK <axis = 2, k = 6> (x)  y = Identity (t)"),
    "cast": (9, "c = Cast <to = 11> (x)  s = Softmax <axis = 2> (c)  y = Cast <to = 1> (s)"),
    "flatten": (9, "s = Shape (x)  f = Flatten <axis = 1> (x)  p = Softmax <axis = 1> (f)  y = Reshape (p, s)"),
}


@pytest.mark.parametrize("name", _OLD_NODES)
def test_old_nodes_give_the_same(name: str) -> None:
    """Attributes that became inputs, and one node that becomes several; the names around it stay."""
    opset, nodes = _OLD_NODES[name]
    source = parser.parse_model(_OLD % (opset, nodes))
    model = ir.from_proto(source)
    with quiet_ir():
        ShapeInferencePass()(model)
        raise_older(model, 18)
    raised = ir.to_proto(model)
    onnx.checker.check_model(raised)
    x = np.random.default_rng(5).standard_normal((2, 4, 6)).astype(np.float32)
    sessions = (ort.InferenceSession(one.SerializeToString()) for one in (source, raised))
    (before,), (after,) = (session.run(None, {"x": x}) for session in sessions)
    np.testing.assert_allclose(after, before, rtol=2.0**-20)
    assert [value.name for value in raised.graph.output] == ["y"]


def test_what_is_around_stays(tmp_path: Path) -> None:
    """Names, metadata, nodes of other domains and external data, which is not read."""
    path = tmp_path / "m.onnx"
    source = _source(17)
    wide = numpy_helper.from_array(np.ones((600, 6), np.float32), "wide")
    source.graph.initializer.append(wide)
    source.graph.node.append(onnx.helper.make_node("Identity", ["wide"], ["unread"]))
    onnx.save(source, path, save_as_external_data=True, location="m.data", size_threshold=0)
    model = load_model(path).ir.clone()
    tensor = model.graph.initializers["wide"].const_value
    assert isinstance(tensor, FileTensor)
    names = {node.name: node.op_type for node in model.graph if node.domain != "own"}
    raise_older(model, 18)
    assert model.graph.initializers["wide"].const_value is tensor
    after = {node.name: node for node in model.graph}
    assert {name: after[name].op_type for name in names} == names
    mean = next(node for node in model.graph if node.outputs[0].name == "mean")
    assert mean.metadata_props["from"] == "layer"
    assert model.metadata_props["who"] == "someone"
    assert [value.name for value in model.graph.outputs] == ["y", "z", "other"]


def test_an_unknown_operator_is_named() -> None:
    """An operator of a later opset in a graph with an older opset import."""
    source = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) {y = Mish (x)}'
    )
    with pytest.raises(ModelError) as raised:
        raise_older(ir.from_proto(source), 18)
    assert str(raised.value) == "'Mish' is not an operator of opsets 17 to 18."
