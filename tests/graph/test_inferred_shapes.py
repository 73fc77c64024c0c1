"""Shape inference in place says what onnx_ir's pass says, and leaves the tensors alone."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from sdpa_onnx.graph.inferred_shapes import infer_shapes
from sdpa_onnx.graph.quiet import quiet_ir

_HEADER = '<ir_version: 8, opset_import: ["" : 17, "own" : 1]>'
_GRAPHS = {
    "sizes are followed": """g (float[b, s, 6] x) => (y) {
        shape = Shape(x)  two = Constant<value_ints=[0, 0, 2, 3]>()  y = Reshape(x, two) }""",
    "large and small initializers": """g (float[b, 300] x) => (y)
        <int64[2] to = {2, -1}> { z = MatMul(x, w)  y = Reshape(z, to) }""",
    "an initializer that is an input": """g (float[b, 300] x, float[300, 2] w) => (y) { y = MatMul(x, w) }""",
    "branches": """g (bool c, float[b, 3] x) => (y) { y = If(c) <
        then_branch = t () => (p) { q = Neg(x)  p = Abs(q) },
        else_branch = e () => (r) { r = Identity(x) }> }""",
    "an unknown operator": """g (float[b, 3] x) => (y) { z = own.Thing(x)  y = Neg(z) }""",
    "inference fails": """g (float[2, 3] x, float[4, 5] w) => (y) { z = MatMul(x, w)  y = Neg(z) }""",
    "an axis without a name": """g (float[?, 3] x) => (y) { y = Transpose<perm=[1, 0]>(x) }""",
}


def _read(name: str) -> ir.Model:
    model = onnx.parser.parse_model(_HEADER + _GRAPHS[name])
    if "initializer" in name:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((300, 2), np.float32), "w"))
    return ir.from_proto(model)


def _stated(model: ir.Model) -> dict[str | None, str]:
    graphs = [model.graph, *model.graph.subgraphs()]
    values = [value for graph in graphs for value in (*graph.inputs, *graph.initializers.values())]
    values += [value for graph in graphs for node in graph for value in node.outputs]
    return {value.name: f"{value.dtype} {value.shape}" for value in values}


@pytest.mark.parametrize("name", _GRAPHS)
def test_says_what_the_pass_of_onnx_ir_says(name: str) -> None:
    """Types and shapes of all values, those of subgraphs too."""
    model, other = _read(name), _read(name)
    infer_shapes(model)
    with quiet_ir():
        ShapeInferencePass(check_type=False, strict_mode=False)(other)
    assert _stated(model) == _stated(other)


@pytest.mark.parametrize("name", _GRAPHS)
def test_inputs_and_tensors_stay(name: str) -> None:
    """The same inputs, and the same tensors in the same order, also where inference fails."""
    model = _read(name)
    before = list(model.graph.inputs), list(model.graph.initializers.items()), _tensors(model)
    infer_shapes(model)
    assert (list(model.graph.inputs), list(model.graph.initializers.items()), _tensors(model)) == before


def _tensors(model: ir.Model) -> list[int]:
    return [id(value.const_value) for value in model.graph.initializers.values()]


def test_numbers_in_a_file_are_not_read(tmp_path: Path) -> None:
    """A large tensor in a file that is not there is no obstacle: its shape is stated."""
    model = _read("large and small initializers")
    model.graph.initializers["w"].const_value = ir.ExternalTensor(
        "gone.bin", 0, 2400, ir.DataType.FLOAT, shape=ir.Shape([300, 2]), name="w", base_dir=tmp_path
    )
    infer_shapes(model)
    assert _stated(model)["z"] == "FLOAT [b,2]"
