"""A model whose tensors lie in a file beside it: in the graph, in a branch, in a constant, in a function."""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.graph.models import FLOAT

__all__ = ["DATA", "WIDTH", "expected", "inside", "referring", "write_outside"]

DATA = "weights.bin"
WIDTH = 32
# Not a multiple of anything, so that offsets are seen to be used.
_FIRST = 100

Array = NDArray[np.float32]


def _numbers() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    shapes = {"weight": (WIDTH, WIDTH), "held": (16, WIDTH), "inner": (16, WIDTH), "called": (16, WIDTH)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def referring(name: str, shape: tuple[int, ...], **entries: object) -> onnx.TensorProto:
    """A tensor that refers to a file as the entries say."""
    proto = TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


def expected(x: Array) -> Array:
    """What the model computes, within a rounding."""
    numbers = _numbers()
    return (x @ numbers["weight"] + numbers["held"] + numbers["inner"] + numbers["called"]).astype(np.float32)


def inside() -> onnx.ModelProto:
    """The same model with its numbers in it."""
    numbers = _numbers().items()
    return _model({name: numpy_helper.from_array(array, name) for name, array in numbers}, with_function=True)


def write_outside(folder: Path, *, with_function: bool = True) -> Path:
    """Write it: y = x weight + held + inner + called, the last three over 16 rows; the last one in a function."""
    numbers, offset, tensors = _numbers(), _FIRST, {}
    for name, array in numbers.items():
        tensors[name] = referring(name, array.shape, location=DATA, offset=offset, length=array.nbytes)
        offset += array.nbytes
    (folder / DATA).write_bytes(b"x" * _FIRST + b"".join(array.tobytes() for array in numbers.values()))
    (folder / "m.onnx").write_bytes(_model(tensors, with_function=with_function).SerializeToString())
    return folder / "m.onnx"


def _model(tensors: dict[str, onnx.TensorProto], *, with_function: bool) -> onnx.ModelProto:
    size = [16, WIDTH]
    info = helper.make_tensor_value_info
    branches = {
        f"{which}_branch": helper.make_graph(
            [helper.make_node("Add", ["sum", "inner"], [f"{which}_sum"])],
            which,
            [],
            [info(f"{which}_sum", FLOAT, size)],
            [tensors["inner"]],
        )
        for which in ("then", "else")
    }
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ours", 1)]
    body = [
        helper.make_node("Constant", [], ["c"], value=tensors["called"]),
        helper.make_node("Add", ["a", "c"], ["b"]),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Constant", [], ["held"], value=tensors["held"]),
        helper.make_node("Add", ["product", "held"], ["sum"]),
        helper.make_node("If", ["which"], ["chosen"], **branches),
        helper.make_node("Shift", ["chosen"], ["y"], domain="ours"),
    ]
    graph = helper.make_graph(
        nodes,
        "outside",
        [info("x", FLOAT, size), info("which", TensorProto.BOOL, [])],
        [info("y", FLOAT, size)],
        [tensors["weight"]],
    )
    if not with_function:
        renamed = {"a": "chosen", "b": "y"}
        for node in body:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        del graph.node[-1]
        graph.node.extend(body)
        return helper.make_model(graph, opset_imports=imports[:1], ir_version=10)
    function = helper.make_function("ours", "Shift", ["a"], ["b"], body, imports[:1])
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=[function])
