"""Functions that call each other: their size once inlined is counted before anything inlines them."""

from collections.abc import Sequence

import onnx
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.function_calls import MOST_NODES, inlined_nodes
from sdpa_onnx.graph.model import load_model

_OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
_SIZES = ["n", 4]


def _calling(functions: Sequence[Sequence[str]], *, copies: int = 1) -> onnx.ModelProto:
    """A model of functions f0, f1, ..., each a chain of the operators named; the graph calls the last one."""
    bodies = []
    for place, names in enumerate(functions):
        values = ["x", *(f"v{step}" for step in range(len(names) - 1)), "y"]
        nodes = [
            helper.make_node(name, [values[step]], [values[step + 1]], domain="own" if name.startswith("f") else "")
            for step, name in enumerate(names)
        ]
        bodies.append(helper.make_function("own", f"f{place}", ["x"], ["y"], nodes, _OPSETS))
    last = f"f{len(functions) - 1}"
    calls = [helper.make_node(last, ["X"], [f"Y{copy}"], domain="own") for copy in range(copies)]
    info = helper.make_tensor_value_info
    outputs = [info(f"Y{copy}", TensorProto.FLOAT, _SIZES) for copy in range(copies)]
    graph = helper.make_graph(calls, "calls", [info("X", TensorProto.FLOAT, _SIZES)], outputs)
    return helper.make_model(graph, opset_imports=_OPSETS, functions=bodies, ir_version=9)


def _doubling(count: int) -> list[list[str]]:
    return [["Relu"], *([f"f{place}", f"f{place}"] for place in range(count - 1))]


SIZES = {
    "one call": ([["Relu"]], 1),
    "a chain": ([["Relu", "Neg"], ["f0", "Neg"], ["f1", "Neg"]], 4),
    "called twice": (_doubling(4), 8),
    "three times": ([["Relu"], ["f0", "f0", "f0"], ["f1", "f1", "f1"]], 9),
    "one that nothing calls": ([["f1", "f1"], ["Relu", "Neg"]], 2),
    "a long chain": ([["Relu"], *([f"f{place}"] for place in range(2000))], 1),
}


@pytest.mark.parametrize("kind", SIZES)
def test_inlined_nodes(kind: str) -> None:
    """The count is the number of nodes that are no calls after inlining."""
    functions, nodes = SIZES[kind]
    assert inlined_nodes(load_model(_calling(functions)).ir) == nodes


HUGE = {
    "doubling": (_doubling(31), 1, 2**30),
    "a hundred levels": (_doubling(100), 1, 2**99),
    "ten times": ([["Relu"], *([f"f{place}"] * 10 for place in range(7))], 1, 10**7),
    "one more than the limit": ([["Relu"] * 3, ["f0"] * 11113], 6, 6 * 3 * 11113),
    "many calls in the graph": ([["Relu"] * 1000], 201, 201_000),
}


@pytest.mark.parametrize("kind", HUGE)
def test_too_many_nodes_are_refused(kind: str) -> None:
    """The sentence has the number of nodes and the limit."""
    functions, copies, nodes = HUGE[kind]
    with pytest.raises(ModelError) as caught:
        load_model(_calling(functions, copies=copies))
    assert str(caught.value) == (
        f"The model is too large: its functions are {nodes:,} nodes when they are inlined, and at most 200,000 are "
        "read. Simplify the functions, which call each other."
    )


def test_limit_itself_is_read() -> None:
    """As many nodes as the limit are read."""
    model = _calling([["Relu"] * 1000], copies=MOST_NODES // 1000)
    assert inlined_nodes(load_model(model).ir) == MOST_NODES


def _large(place: str, count: int) -> onnx.ModelProto:
    """A model with nodes in the graph, in a branch of an If, or in a function."""
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    branch = onnx.helper.make_graph([node], "b", [], [onnx.helper.make_tensor_value_info("y", 1, [2])])
    chosen = onnx.helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    model = onnx.helper.make_model(onnx.helper.make_graph([chosen], "g", [], []))
    model.functions.append(onnx.helper.make_function("own", "F", ["x"], ["y"], [node], model.opset_import))
    places = {
        "graph": model.graph.node,
        "branch": model.graph.node[0].attribute[0].g.node,
        "function": model.functions[0].node,
    }
    places[place].extend([node] * count)
    return model


@pytest.mark.parametrize("place", ["graph", "branch", "function"])
def test_too_many_written_nodes_are_refused(place: str) -> None:
    """Wherever they are, and before any is looked at."""
    with pytest.raises(ModelError, match=r"it has more than 200,000 nodes, and at most these are read\. Export the"):
        load_model(_large(place, MOST_NODES))
