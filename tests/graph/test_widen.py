"""A widened node computes in float64 where the plain one rounds."""

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from sdpa_onnx.graph.widen import widened_node

X = np.random.default_rng(0).standard_normal((4, 8))


def _evaluate(node: onnx.NodeProto) -> NDArray[np.generic]:
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in node.input if name],
        [helper.make_empty_tensor_value_info(name) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    feeds = {"x": X, "g": np.ones(8), "b": np.zeros(8)}
    result: NDArray[np.generic] = ReferenceEvaluator(model).run(None, {name: feeds[name] for name in node.input})[0]
    return result


@pytest.mark.parametrize("to", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_cast_rounds_nothing(to: int) -> None:
    """A Cast to a narrower type returns its input."""
    assert np.array_equal(_evaluate(widened_node(helper.make_node("Cast", ["x"], ["y"], to=to))), X)


def test_cast_to_whole_numbers_stays() -> None:
    """A Cast to integers is unchanged."""
    result = _evaluate(widened_node(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT64)))
    assert result.dtype == np.int64


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"], epsilon=1e-5),
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"], epsilon=1e-5, stash_type=TensorProto.FLOAT16),
        helper.make_node("RMSNormalization", ["x", "g"], ["y"], epsilon=1e-5),
        helper.make_node("GroupNormalization", ["x", "g", "b"], ["y"], epsilon=1e-5, num_groups=2, stash_type=1),
    ],
    ids=lambda node: f"{node.op_type}-{len(node.attribute)}",
)
def test_norms_are_float64(node: onnx.NodeProto) -> None:
    """Norms that stash in float32 give float64 results: within 1e-14 of the formula."""
    epsilon = float(np.float32(1e-5))
    if node.op_type == "GroupNormalization":
        parts = X.reshape(4, 2, 4)
        expected = ((parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + epsilon)).reshape(
            X.shape
        )
    elif node.op_type == "RMSNormalization":
        expected = X / np.sqrt((X * X).mean(-1, keepdims=True) + epsilon)
    else:
        expected = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + epsilon)
    assert np.abs(_evaluate(widened_node(node)).astype(np.float64) - expected).max() < 1e-14


def test_source_and_subgraphs() -> None:
    """The source node is unchanged; tensors, types and initializers of subgraphs are widened."""
    inner = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float16(1.5))),
            helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT16),
        ],
        "body",
        [],
        [helper.make_tensor_value_info("d", TensorProto.FLOAT16, [])],
        [numpy_helper.from_array(np.array([1, 2], np.float32), "w"), numpy_helper.from_array(np.array([1]), "i")],
    )
    node = helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)
    before = node.SerializeToString()
    wide = widened_node(node)
    assert node.SerializeToString() == before
    for attribute in wide.attribute:
        graph = attribute.g
        assert [one.data_type for one in graph.initializer] == [TensorProto.DOUBLE, TensorProto.INT64]
        assert numpy_helper.to_array(graph.initializer[0]).tolist() == [1.0, 2.0]
        assert graph.node[0].attribute[0].t.data_type == TensorProto.DOUBLE
        assert graph.node[1].attribute[0].i == TensorProto.DOUBLE
        assert graph.output[0].type.tensor_type.elem_type == TensorProto.DOUBLE
