"""Models from other exporters whose attentions no site describes: behind a MatMul, in a function, in an If."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["SECRET", "WEIGHTS", "behind_product", "in_function", "in_if", "several", "without_attention"]

SECRET = "SECRET"  # noqa: S105  # part of every name, so that tests can search for it
_ATTENTION = ("K", "V", "", "PK", "PV")
_DOMAIN = f"{SECRET}_domain"

WEIGHTS = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
WEIGHTS[0, :4] = 1234.5678


def _value(name: str, length: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{SECRET}_batch", 2, length, 8])


def _model(
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    inputs = [
        _value(name, length) for name, length in (("Q", "qs"), ("K", "ks"), ("V", "ks"), ("PK", "ps"), ("PV", "ps"))
    ]
    outputs = [_value("Y", "qs"), _value("PRK", "ts"), _value("PRV", "ts")]
    graph = helper.make_graph(nodes, f"{SECRET}_graph", inputs, outputs, initializers, doc_string=f"{SECRET}_doc")
    imports = [helper.make_opsetid("", 23), *(helper.make_opsetid(_DOMAIN, 1) for _ in functions)]
    model: onnx.ModelProto = helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)
    return model


def _attention(query: str, outputs: Sequence[str]) -> onnx.NodeProto:
    return helper.make_node("Attention", [query, *_ATTENTION], outputs, is_causal=1)


def behind_product() -> onnx.ModelProto:
    """Attention with a query whose shape the graph does not declare."""
    product = helper.make_node("MatMul", ["Q", "W"], ["q0"])
    return _model([product, _attention("q0", ["Y", "PRK", "PRV"])], [numpy_helper.from_array(WEIGHTS, "W")])


def in_function() -> onnx.ModelProto:
    """The same in a function whose weights are the default value of an attribute."""
    function = onnx.FunctionProto(name=f"{SECRET}_function", domain=_DOMAIN, doc_string=f"{SECRET}_text")
    function.input.extend(["x", "k", "v", "pk", "pv"])
    function.output.extend(["y", "prk", "prv"])
    function.opset_import.append(helper.make_opsetid("", 23))
    constant = helper.make_node("Constant", [], [f"{SECRET}_c"])
    kind = onnx.AttributeProto.TENSOR
    constant.attribute.append(onnx.AttributeProto(name="value", ref_attr_name=f"{SECRET}_weights", type=kind))
    named = helper.make_node("Constant", [], [f"{SECRET}_s"])
    kind = onnx.AttributeProto.STRING
    named.attribute.append(onnx.AttributeProto(name="value_string", ref_attr_name=f"{SECRET}_word", type=kind))
    default = numpy_helper.from_array(WEIGHTS, f"{SECRET}_tensor")
    function.attribute_proto.append(helper.make_attribute(f"{SECRET}_weights", default, doc_string=f"{SECRET}_said"))
    function.attribute.append(f"{SECRET}_word")
    attention = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "prk", "prv"], is_causal=1)
    function.node.extend([constant, named, helper.make_node("MatMul", ["x", f"{SECRET}_c"], ["q"]), attention])
    word = {f"{SECRET}_word": f"{SECRET}_password"}
    inputs = ["Q", "K", "V", "PK", "PV"]
    call = helper.make_node(function.name, inputs, ["Y", "PRK", "PRV"], domain=_DOMAIN, **word)
    return _model([call], functions=[function])


def in_if() -> onnx.ModelProto:
    """The same in both branches of an If."""
    branches = []
    for number in range(2):
        names = [f"{name}{number}" for name in ("y", "prk", "prv")]
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        branches.append(helper.make_graph([_attention("Q", names)], f"branch{number}", [], infos))
    outputs = ["Y", "PRK", "PRV"]
    node = helper.make_node("If", ["condition"], outputs, then_branch=branches[0], else_branch=branches[1])
    return _model([node], [numpy_helper.from_array(np.array(True), "condition")])


def several() -> onnx.ModelProto:
    """Three attentions in sequence; only the first has known shapes."""
    first = helper.make_node("Attention", ["Q", "K", "V"], ["y1"], name="a1")
    last = helper.make_node("Attention", ["y2", "K", "V"], ["Y"], name="a3")
    return _model([first, _attention("y1", ["y2", "PRK", "PRV"]), last])


def without_attention() -> onnx.ModelProto:
    """A model without attention."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["Q"], ["Y"])], "graph", [_value("Q", "qs")], [_value("Y", "qs")]
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return model
