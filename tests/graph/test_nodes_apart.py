"""Nodes set apart: each gives what it gives in the graph, on inputs of its own."""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.nodes_apart import ApartModel, captured_values, has_subgraph, nodes_apart
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from tests.graph.models import model_of

Arrays = dict[str, NDArray[np.generic]]


def _run(apart: ApartModel) -> Arrays:
    with get_runtime("onnx-reference").load(apart.model, LoadOptions()) as session:
        return session.run(apart.feeds)


def _chain() -> OnnxModel:
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], name="first"),
        helper.make_node("Mul", ["a", "a"], ["b"], name="second"),
        helper.make_node("Clip", ["b", "", "w"], ["y"], name="third"),
    ]
    return load_model(
        onnx.shape_inference.infer_shapes(model_of(nodes, {"x": ["n"]}, {"y": ["n"]}, {"w": np.float32(2)}))
    )


def test_each_reads_its_own() -> None:
    """Nodes of a chain give what their own feeds make, not what the node before them gives."""
    model = _chain()
    values: Arrays = {name: np.array([number], np.float32) for name, number in (("x", 1), ("a", 10), ("b", 100))}
    apart = nodes_apart(model.ir, list(model.ir.graph), values, {"w": np.array(2, np.float32)})
    assert {name: array.item() for name, array in _run(apart).items()} == {"a": 3.0, "b": 100.0, "y": 2.0}
    assert apart.model.input_names == ("x.to.0", "a.to.1", "b.to.2")
    assert list(apart.model.ir.graph.initializers) == ["w"]


def test_constant_that_a_node_makes() -> None:
    """What depends on constants only stays a constant, beside the node that makes it."""
    nodes = [
        helper.make_node("Neg", ["w"], ["v"], name="turn"),
        helper.make_node("Add", ["x", "v"], ["y"], name="add"),
    ]
    model = load_model(model_of(nodes, {"x": ["n"]}, {"y": ["n"]}, {"w": np.float32(2)}))
    constants: Arrays = {"w": np.array(2, np.float32), "v": np.array(50, np.float32)}
    apart = nodes_apart(model.ir, list(model.ir.graph), {"x": np.array([1], np.float32)}, constants)
    assert {name: array.tolist() for name, array in _run(apart).items()} == {"v": -2.0, "y": [51.0]}
    assert set(apart.model.ir.graph.initializers) == {"w", "v.constant"}


def test_branches_read_values_by_name() -> None:
    """A node with subgraphs stands alone under the names of the graph, with what its branches capture."""

    def branch(operator: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"in_{operator}", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(operator, ["a", "w"], [f"in_{operator}"])], operator, [], [out])

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("If", ["yes"], ["y"], name="choice", then_branch=branch("Add"), else_branch=branch("Mul")),
    ]
    proto = model_of(nodes, {"x": ["n"]}, {"y": ["n"]}, {"w": np.float32(2)})
    proto.graph.input.append(helper.make_tensor_value_info("yes", TensorProto.BOOL, []))
    model = load_model(proto)
    first, choice = model.ir.graph
    assert (has_subgraph(first), has_subgraph(choice)) == (False, True)
    assert [value.name for value in captured_values(choice)] == ["a", "w"]
    for yes, expected in ((True, 7.0), (False, 10.0)):
        values: Arrays = {"a": np.array([5], np.float32), "yes": np.array(yes)}
        apart = nodes_apart(model.ir, [choice], values, {"w": np.array(2, np.float32)})
        assert _run(apart)["y"].tolist() == [expected]


def test_bfloat16_constant() -> None:
    """Constants keep their type."""
    import ml_dtypes

    weight = np.array([2], ml_dtypes.bfloat16)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "test",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, ["n"])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11))
    apart = nodes_apart(model.ir, list(model.ir.graph), {"x": weight}, {"w": weight})
    assert _run(apart)["y"].dtype == weight.dtype
