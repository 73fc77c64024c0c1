"""Each way in which a graph is not whole, by the sentence that names the place; sound graphs of every kind pass."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import load_model
from tests.graph.models import FLOAT, inner_attention, model_of
from tests.graph.outside import inside

Change = Callable[[onnx.ModelProto], object]
_HINT = "It may be damaged, or hold what is not read here."


def _set(message: object, **fields: object) -> None:
    for name, value in fields.items():
        setattr(message, name, value)


def _constant(model: onnx.ModelProto) -> onnx.TensorProto:
    tensor: onnx.TensorProto = model.graph.initializer[0]
    return tensor


def _typed(model: onnx.ModelProto, field: str, values: list[object], data_type: int) -> None:
    tensor = _constant(model)
    tensor.ClearField("raw_data")
    tensor.data_type = data_type
    getattr(tensor, field).extend(values)


def _attribute(model: onnx.ModelProto, **fields: object) -> None:
    attribute = model.graph.node[1].attribute.add(name="scale")
    _set(attribute, **fields)


def _self_calling(model: onnx.ModelProto) -> None:
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("ours", 1)]
    for name, called in (("One", "Two"), ("Two", "One")):
        body = [helper.make_node(called, ["a"], ["b"], domain="ours")]
        model.functions.append(helper.make_function("ours", name, ["a"], ["b"], body, imports))


def _function(model: onnx.ModelProto, node: onnx.NodeProto, output: str = "b") -> None:
    model.functions.append(helper.make_function("ours", "F", ["a"], [output], [node], [helper.make_opsetid("", 23)]))


def _branch(model: onnx.ModelProto, output: str) -> None:
    node = helper.make_node("Neg", ["q"], ["negated"])
    made = helper.make_graph([node], "branch", [], [helper.make_tensor_value_info(output, FLOAT, None)])
    model.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=made, else_branch=made, name="choose"))


# inner_attention: project (MatMul) makes q of x and w, attend (Attention) makes inner, residual (Add) makes y.
FAULTS: dict[str, tuple[Change, str]] = {
    "dangling": (
        lambda m: m.graph.node[1].input.__setitem__(1, "gone"),
        "node 'attend' (Attention) reads 'gone', which nothing makes",
    ),
    "twice": (lambda m: m.graph.node[1].output.__setitem__(0, "q"), "'q' stands twice among the values that are made"),
    "over an input": (
        lambda m: m.graph.node[1].output.__setitem__(0, "x"),
        "'x' stands twice among the values that are made",
    ),
    "inputs twice": (
        lambda m: m.graph.input.append(m.graph.input[0]),
        "'x' stands twice among the inputs of graph 'test'",
    ),
    "tensors twice": (
        lambda m: m.graph.initializer.append(m.graph.initializer[0]),
        "'w' stands twice among the tensors of graph 'test'",
    ),
    "tensor without a name": (
        lambda m: _constant(m).ClearField("name"),
        "a name is missing among the tensors of graph 'test'",
    ),
    "output": (lambda m: _set(m.graph.output[0], name="gone"), "nothing in graph 'test' makes its output 'gone'"),
    "output of a branch": (lambda m: _branch(m, "gone"), "nothing in graph 'branch' makes its output 'gone'"),
    "outer output of a branch": (lambda m: _branch(m, "q"), "nothing in graph 'branch' makes its output 'q'"),
    "no operator": (lambda m: _set(m.graph.node[0], op_type=""), "node 'project' () has no operator"),
    "too few inputs": (
        lambda m: m.graph.node[1].input.pop(),
        "node 'attend' (Attention) has 2 inputs, and takes at least 3",
    ),
    "too many inputs": (
        lambda m: m.graph.node[0].input.append("x"),
        "node 'project' (MatMul) has 3 inputs, and takes 2",
    ),
    "input left out": (
        lambda m: m.graph.node[1].input.__setitem__(2, ""),
        "node 'attend' (Attention) lacks its input V",
    ),
    "too many outputs": (
        lambda m: m.graph.node[2].output.append("z"),
        "node 'residual' (Add) has 2 outputs, and takes 1",
    ),
    "attribute of another type": (
        lambda m: _attribute(m, type=AttributeProto.INT, i=1),
        "node 'attend' (Attention) has an attribute 'scale' of type INT instead of FLOAT",
    ),
    "attribute unknown": (
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("scale", 1.0)),
        "node 'project' (MatMul) has an attribute 'scale', which its operator of this version does not have",
    ),
    "attribute missing": (
        lambda m: m.graph.node.append(helper.make_node("Cast", ["x"], ["z"], name="cast")),
        "node 'cast' (Cast) lacks its attribute 'to'",
    ),
    "attribute twice": (
        lambda m: m.graph.node[1].attribute.extend([helper.make_attribute("scale", 1.0)] * 2),
        "'scale' stands twice among the attributes of node 'attend' (Attention)",
    ),
    "attribute of two types": (
        lambda m: _attribute(m, type=AttributeProto.FLOAT, f=1.0, i=1),
        "attribute 'scale' of node 'attend' (Attention) is of type FLOAT, but has i",
    ),
    "attribute without a type": (
        lambda m: _attribute(m, f=1.0),
        "attribute 'scale' of node 'attend' (Attention) is of the type UNDEFINED",
    ),
    "attribute without content": (
        lambda m: _attribute(m, type=AttributeProto.GRAPH),
        "attribute 'scale' of node 'attend' (Attention) has no content",
    ),
    "reference outside of functions": (
        lambda m: _attribute(m, type=AttributeProto.FLOAT, ref_attr_name="s"),
        "attribute 'scale' of node 'attend' (Attention) refers to an attribute of a function, and is in none",
    ),
    "two versions": (
        lambda m: m.opset_import.extend([helper.make_opsetid("ai.onnx", 22)]),
        "it imports two versions of the operators of 'ai.onnx'",
    ),
    "version": (lambda m: _set(m.opset_import[0], version=-3), "it imports version -3 of the operators of 'ai.onnx'"),
    "no version": (
        lambda m: m.opset_import.__delitem__(0),
        "node 'project' (MatMul) is a standard operator, and the model imports no version of them",
    ),
    "type": (
        lambda m: _set(m.graph.input[0].type.tensor_type, elem_type=99),
        "value 'x' is of the unknown type 99",
    ),
    "size": (
        lambda m: _set(m.graph.input[0].type.tensor_type.shape.dim[1], dim_value=-1),
        "value 'x' has a negative size; an axis of any size has a name or nothing",
    ),
    "map": (
        lambda m: m.graph.input.add(name="m").type.map_type.SetInParent(),
        "value 'm' is of a kind that is not read here (map_type)",
    ),
    "sparse": (
        lambda m: m.graph.sparse_initializer.add(),
        "graph 'test' has sparse tensors, which are not read here",
    ),
    "tensor of no type": (lambda m: _set(_constant(m), data_type=0), "tensor 'w' is of the unknown type 0"),
    "negative size": (
        lambda m: _constant(m).dims.__setitem__(0, -8),
        "tensor 'w' has a size that cannot be: [-8, 8]",
    ),
    "huge size": (
        lambda m: _constant(m).dims.__setitem__(0, 2**60),
        f"tensor 'w' has a size that cannot be: [{2**60}, 8]",
    ),
    "too few bytes": (
        lambda m: _set(_constant(m), raw_data=b"1234"),
        "tensor 'w' has 4 bytes, but its shape [8, 8] takes 256",
    ),
    "no numbers": (
        lambda m: _constant(m).ClearField("raw_data"),
        "tensor 'w' has 0 numbers, but its shape [8, 8] takes 64",
    ),
    "too few numbers": (
        lambda m: _typed(m, "float_data", [1.0], TensorProto.FLOAT),
        "tensor 'w' has 1 numbers, but its shape [8, 8] takes 64",
    ),
    "numbers of another type": (
        lambda m: _typed(m, "int64_data", [1] * 64, TensorProto.FLOAT),
        "tensor 'w' of type FLOAT has its numbers in int64_data",
    ),
    "numbers twice": (
        lambda m: _constant(m).float_data.append(1.0),
        "tensor 'w' of type FLOAT has its numbers in raw_data and float_data",
    ),
    "text as bytes": (
        lambda m: _set(_constant(m), data_type=TensorProto.STRING),
        "tensor 'w' of type STRING has its text in raw_data",
    ),
    "segments": (
        lambda m: _constant(m).segment.SetInParent(),
        "tensor 'w' is given in segments, which are not read here",
    ),
    "file without saying so": (
        lambda m: _constant(m).external_data.add(key="location", value="x"),
        "tensor 'w' names a file, but is said to have its numbers here",
    ),
    "functions twice": (
        lambda m: [_function(m, helper.make_node("Neg", ["a"], ["b"])) for _ in range(2)],
        "it has two functions of one name",
    ),
    "functions in a circle": (_self_calling, "function 'One' calls itself"),
    "value of a function": (
        lambda m: _function(m, helper.make_node("Neg", ["x"], ["b"], name="outer")),
        "node 'outer' (Neg) reads 'x', which nothing makes",
    ),
    "output of a function": (
        lambda m: _function(m, helper.make_node("Neg", ["a"], ["b"]), output="c"),
        "nothing in function 'F' makes its output 'c'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_named(tmp_path: Path, fault: str) -> None:
    """A file with this fault is refused with one sentence that says what and where."""
    change, text = FAULTS[fault]
    model = inner_attention()
    load_model(model)
    change(model)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert str(caught.value) == f"{path} is no sound model: {text}. {_HINT}"


def test_fault_of_a_message() -> None:
    """A model in memory is looked at in the same way."""
    model = inner_attention()
    model.graph.node[1].input[1] = "gone"
    with pytest.raises(ModelError) as caught:
        load_model(model)
    assert str(caught.value) == (
        f"The model is no sound model: node 'attend' (Attention) reads 'gone', which nothing makes. {_HINT}"
    )


def test_circle(tmp_path: Path) -> None:
    """Nodes that wait for each other, or for themselves, are refused."""
    for reads in ("y", "q"):
        model = inner_attention()
        model.graph.node[0].input[0] = reads
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ModelError) as caught:
            load_model(path)
        assert str(caught.value) == (
            f"{path} is no sound model: its nodes wait for each other in a circle. It may be damaged."
        )


def test_nodes_out_of_order() -> None:
    """Some writers do not sort; onnxruntime reads such files, and so do we, sorted."""
    model = inner_attention()
    nodes = [model.graph.node[place] for place in (2, 0, 1)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    loaded = load_model(model)
    assert [node.name for node in loaded.ir.graph] == ["project", "attend", "residual"]


def test_text_that_is_none(tmp_path: Path) -> None:
    """protobuf reads a name of any bytes, and then nothing can be done with it."""
    path = tmp_path / "m.onnx"
    path.write_bytes(inner_attention().SerializeToString().replace(b"residual", b"resid\xff\xfel"))
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert str(caught.value) == (
        f"{path} is no sound model: a text in it (field name) is no UTF-8: b'resid\\xff\\xfel'. {_HINT}"
    )


def test_tensors_of_every_type_are_sound() -> None:
    """Numbers as bytes and one by one, in every type and packed ones too, have the length that is asked for."""
    known = {int(each) for each in ir.DataType} - {TensorProto.UNDEFINED}  # older ones lack the newest types of onnx
    for data_type in sorted(known & set(TensorProto.DataType.values())):
        values: list[object] = [b"a", b"b", b"c"] if data_type == TensorProto.STRING else [1, 0, 1]
        typed = helper.make_tensor("t", data_type, [3], values)
        model = model_of([helper.make_node("Identity", ["t"], ["y"])], {"x": [1]}, {"y": [3]})
        model.graph.initializer.append(typed)
        load_model(model)
        if data_type != TensorProto.STRING:
            raw = numpy_helper.from_array(numpy_helper.to_array(typed), "t")
            model.graph.initializer[0].CopyFrom(raw)
            load_model(model)


def test_empty_tensor_is_sound() -> None:
    """A size of 0 needs no numbers."""
    load_model(model_of([], {"x": [0, 3]}, {"t": [0, 3]}, {"t": np.zeros((0, 3), np.float32)}))


@pytest.mark.slow
def test_onnx_own_models_are_sound() -> None:
    """None of ONNX's own operator tests, the outside truth of what is allowed, is refused."""
    models = [case.model for case in load_model_tests(kind="node") if case.model is not None]
    assert len(models) > 1000
    for model in models:
        load_model(model)


def test_newer_operators_are_left_alone() -> None:
    """What an operator of a version after the installed onnx takes is not known, and not judged."""
    model = inner_attention()
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    model.graph.node[0].attribute.append(helper.make_attribute("new", 1.0))
    load_model(model)


def test_functions_branches_and_constants_are_sound() -> None:
    """A branch reads values of the graph around it, a function has names of its own."""
    assert load_model(inside()).node_counts() == {"MatMul": 1, "Constant": 1, "Add": 1, "If": 1, "Shift": 1}
