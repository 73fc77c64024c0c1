"""Damaged models are refused with a sentence that names the fault; valid ones, and what onnxruntime runs, are read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import load_model
from tests.graph.models import FLOAT, inner_attention, model_of
from tests.graph.outside import inside

Change = Callable[[onnx.ModelProto], object]
_HINT = "It may be damaged, or use what this version cannot read."


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


def _sparse(model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8, 8]))
    del model.graph.initializer[0]


def _negative(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[2].dim_value = -1


# inner_attention: project (MatMul) makes q of x and w, attend (Attention) makes inner, residual (Add) makes y.
FAULTS: dict[str, tuple[Change, str]] = {
    "dangling": (
        lambda m: m.graph.node[1].input.__setitem__(1, "gone"),
        "node 'attend' (Attention) reads 'gone', which nothing computes",
    ),
    "twice": (
        lambda m: m.graph.node[1].output.__setitem__(0, "q"),
        "onnx_ir cannot read it (ValueError: Output 'q' is redeclared in the current graph scope.",
    ),
    "over an input": (
        lambda m: m.graph.node[1].output.__setitem__(0, "x"),
        "onnx_ir cannot read it (ValueError: Output 'x' is redeclared in the current graph scope.",
    ),
    "inputs twice": (
        lambda m: m.graph.input.append(m.graph.input[0]),
        "two inputs of graph 'test' have one name",
    ),
    "tensor without a name": (
        lambda m: _constant(m).ClearField("name"),
        "node 'project' (MatMul) reads 'w', which nothing computes",
    ),
    "output": (lambda m: _set(m.graph.output[0], name="gone"), "nothing in graph 'test' computes its output 'gone'"),
    "output of a branch": (lambda m: _branch(m, "gone"), "nothing in graph 'branch' computes its output 'gone'"),
    "outer output of a branch": (lambda m: _branch(m, "q"), "nothing in graph 'branch' computes its output 'q'"),
    "no operator": (
        lambda m: _set(m.graph.node[0], op_type=""),
        "node 'project' (): Field 'op_type' of 'node' is required to be non-empty",
    ),
    "too few inputs": (
        lambda m: m.graph.node[1].input.pop(),
        "node 'attend' (Attention): Node(attend) with schema(::Attention:23) has input size 2 not in range",
    ),
    "too many inputs": (
        lambda m: m.graph.node[0].input.append("x"),
        "node 'project' (MatMul): Node(project) with schema(::MatMul:13) has input size 3 not in range [min=2, max=2]",
    ),
    "input left out": (
        lambda m: m.graph.node[1].input.__setitem__(2, ""),
        "node 'attend' (Attention): Node (attend)'s input 2 is marked single but has an empty string in the graph",
    ),
    "too many outputs": (
        lambda m: m.graph.node[2].output.append("z"),
        "node 'residual' (Add): Node(residual) with schema(::Add:14) has output size 2 not in range [min=1, max=1]",
    ),
    "attribute of another type": (
        lambda m: _attribute(m, type=AttributeProto.INT, i=1),
        "node 'attend' (Attention): Mismatched attribute type in 'attend : scale'. Expected: 'FLOAT', actual: 'INT'",
    ),
    "attribute unknown": (
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("scale", 1.0)),
        "node 'project' (MatMul): Unrecognized attribute: scale for operator MatMul",
    ),
    "attribute missing": (
        lambda m: m.graph.node.append(helper.make_node("Cast", ["x"], ["z"], name="cast")),
        "node 'cast' (Cast): Required attribute 'to' is missing",
    ),
    "attribute twice": (
        lambda m: m.graph.node[1].attribute.extend([helper.make_attribute("scale", 1.0)] * 2),
        "node 'attend' (Attention): Attribute 'scale' appeared multiple times",
    ),
    "attribute of two types": (
        lambda m: _attribute(m, type=AttributeProto.FLOAT, f=1.0, i=1),
        "node 'attend' (Attention): type field and data field mismatch in attribute scale",
    ),
    "attribute without a type": (
        lambda m: _attribute(m, f=1.0),
        "node 'attend' (Attention): Field 'type' of 'attr' is required but missing",
    ),
    "attribute without content": (
        lambda m: _attribute(m, type=AttributeProto.GRAPH),
        "node 'attend' (Attention): Mismatched attribute type in 'attend : scale'. Expected: 'FLOAT', actual: 'GRAPH'",
    ),
    "reference outside of functions": (
        lambda m: _attribute(m, type=AttributeProto.FLOAT, ref_attr_name="s"),
        "node 'attend' (Attention) refers to an attribute of a function, and is in none",
    ),
    "version": (
        lambda m: _set(m.opset_import[0], version=-3),
        "node 'project' (MatMul) is a standard operator, and the model imports no version of them",
    ),
    "no version": (
        lambda m: m.opset_import.__delitem__(0),
        "node 'project' (MatMul) is a standard operator, and the model imports no version of them",
    ),
    "type": (
        lambda m: _set(m.graph.input[0].type.tensor_type, elem_type=99),
        "onnx_ir cannot read it (ValueError: 99 is not a valid DataType)",
    ),
    "map": (
        lambda m: m.graph.input.add(name="m").type.map_type.SetInParent(),
        "onnx_ir cannot read it (NotImplementedError: Map types are not supported yet.",
    ),
    "sparse": (
        _sparse,
        "node 'project' (MatMul) reads 'w', which nothing computes",
    ),
    "tensor of no type": (lambda m: _set(_constant(m), data_type=0), "tensor 'w' has no element type"),
    "negative size": (
        lambda m: _constant(m).dims.__setitem__(0, -8),
        "tensor 'w' has a negative size: [-8, 8]",
    ),
    "huge size": (
        lambda m: _constant(m).dims.__setitem__(0, 2**60),
        f"tensor 'w' has 256 bytes, but its shape [{2**60}, 8] needs {2**65}",
    ),
    "too few bytes": (
        lambda m: _set(_constant(m), raw_data=b"1234"),
        "tensor 'w' has 4 bytes, but its shape [8, 8] needs 256",
    ),
    "no numbers": (
        lambda m: _constant(m).ClearField("raw_data"),
        "tensor 'w' cannot be read: TensorProto (tensor name: w) should contain one and only one value field",
    ),
    "too few numbers": (
        lambda m: _typed(m, "float_data", [1.0], TensorProto.FLOAT),
        "tensor 'w' cannot be read: TensorProto (tensor name: w) float_data size (1) is too small",
    ),
    "numbers of another type": (
        lambda m: _typed(m, "int64_data", [1] * 64, TensorProto.FLOAT),
        "tensor 'w' cannot be read: values of data_type '1' should be stored in field 'float_data'",
    ),
    "text as bytes": (
        lambda m: _set(_constant(m), data_type=TensorProto.STRING),
        "tensor 'w' cannot be read: cannot reshape array of size 0 into shape (8,8)",
    ),
    "functions twice": (
        lambda m: [_function(m, helper.make_node("Neg", ["a"], ["b"])) for _ in range(2)],
        "it has two functions of one name",
    ),
    "functions in a circle": (_self_calling, "function 'One' calls itself"),
    "value of a function": (
        lambda m: _function(m, helper.make_node("Neg", ["x"], ["b"], name="outer")),
        "node 'outer' (Neg) reads 'x', which nothing computes",
    ),
    "output of a function": (
        lambda m: _function(m, helper.make_node("Neg", ["a"], ["b"]), output="c"),
        "onnx_ir cannot read it (KeyError: 'c')",
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
    assert str(caught.value).startswith(f"{path} is not a valid model: {text}")
    assert str(caught.value).endswith(f". {_HINT}")
    assert "\n" not in str(caught.value)


def test_fault_of_a_message() -> None:
    """A model in memory is checked in the same way."""
    model = inner_attention()
    model.graph.node[1].input[1] = "gone"
    with pytest.raises(ModelError) as caught:
        load_model(model)
    assert str(caught.value) == (
        f"The model is not a valid model: node 'attend' (Attention) reads 'gone', which nothing computes. {_HINT}"
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
            f"{path} is not a valid model: onnx_ir cannot read it "
            f"(ValueError: Graph contains a cycle, topological sort is not possible). {_HINT}"
        )


# What onnx.checker refuses, or nobody should write, and onnxruntime runs.
LENIENT: dict[str, Change] = {
    "tensors twice": lambda m: m.graph.initializer.append(m.graph.initializer[0]),
    "negative size": _negative,
    "output without a shape": lambda m: m.graph.output[0].type.tensor_type.ClearField("shape"),
    "numbers twice": lambda m: _constant(m).float_data.append(1.0),
    "file without saying so": lambda m: _constant(m).external_data.add(key="location", value="x"),
    "graph without a name": lambda m: m.graph.ClearField("name"),
    "old operator": lambda m: m.graph.node[2].CopyFrom(
        helper.make_node("SimplifiedLayerNormalization", ["inner", "w"], ["y"])
    ),
    "operators of a domain that is not imported": lambda m: m.graph.node[2].CopyFrom(
        helper.make_node("FusedMatMul", ["inner", "w"], ["y"], domain="com.microsoft", alpha=1.0)
    ),
}


@pytest.mark.parametrize("kind", LENIENT)
def test_what_onnxruntime_runs_is_read(kind: str) -> None:
    """Files that onnx.checker refuses and onnxruntime loads are read, and onnxruntime loads what is written of them."""
    model = inner_attention()
    LENIENT[kind](model)
    for data in (model.SerializeToString(), load_model(model).to_bytes()):
        onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def test_negative_size_is_an_open_axis() -> None:
    """Some writers give -1 for an axis of any size."""
    model = inner_attention()
    _negative(model)
    assert str(load_model(model).input_value("x").shape) == "[batch_size,2,None,8]"


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
        f"{path} is not a valid model: a text in it (field name) is not UTF-8: b'resid\\xff\\xfel'. {_HINT}"
    )


def test_tensors_of_every_type_are_sound() -> None:
    """Numbers as bytes and one by one, of every type, packed ones too, are accepted."""
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
