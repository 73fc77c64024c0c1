"""Replace an attention by a form: which nodes are kept, which are removed, and the node order."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.form_outputs import FormOutputs
from sdpa_onnx.graph.lower.graph_edits import GraphEdits
from sdpa_onnx.graph.lower.lower import build_form, insert_form, lower, with_current_values
from sdpa_onnx.graph.nodes import Nodes
from tests.graph.lower.canonical import RAGGED, Bare, Trials, drawn
from tests.graph.models import SPECS

_FLOAT = ir.TensorType(ir.DataType.FLOAT)
_WIDE = ir.Shape(["batch_size", 2, "q_seq_len", 8])


def _value(name: str, shape: ir.Shape = _WIDE) -> ir.Value:
    return ir.Value(name=name, type=_FLOAT, shape=ir.Shape(shape))


def _named(node: ir.Node, *names: str) -> ir.Node:
    for value, name in zip(node.outputs, names, strict=True):
        value.name, value.type, value.shape = name, _FLOAT, ir.Shape(_WIDE)
    node.name = f"node_{names[0]}"
    return node


class _Graph:
    """Decomposed softmax(2 x x^T) x between two other nodes, with unused nodes."""

    def __init__(self, *, opset: int = 18) -> None:
        self.x = _value("x")
        factor = ir.Value(name="factor", const_value=ir.tensor(np.array(2, np.float32), name="factor"))
        factor.type, factor.shape = _FLOAT, ir.Shape([])
        self.before = _named(ir.node("Relu", [self.x]), "before")
        x = self.before.outputs[0]
        turned = _named(ir.node("Transpose", [x], attributes={"perm": [0, 1, 3, 2]}), "turned")
        product = _named(ir.node("MatMul", [x, turned.outputs[0]]), "product")
        scaled = _named(ir.node("Mul", [product.outputs[0], factor]), "scaled")
        weights = _named(ir.node("Softmax", [scaled.outputs[0]]), "weights")
        mixed = _named(ir.node("MatMul", [weights.outputs[0], x]), "mixed")
        for node in (turned, product, scaled, weights):
            node.outputs[0].shape = None
        self.after = _named(ir.node("Relu", [mixed.outputs[0]]), "after")
        self.unread = _named(ir.node("Abs", [x]), "unread")
        self.nodes = [self.before, turned, product, scaled, weights, mixed, self.unread, self.after]
        self.graph = ir.Graph(
            [self.x],
            [self.after.outputs[0]],
            nodes=self.nodes,
            initializers=[factor],
            opset_imports={"": opset},
            name="test",
        )
        self.model = ir.Model(self.graph, ir_version=10)
        spec = replace(SPECS["causal"], is_causal=False, scale=2.0)
        self.attention = GraphAttention(
            name="a", spec=spec, dtype=Dtype.FLOAT32, query=x, key=x, value=x, output=mixed.outputs[0]
        )

    @property
    def names(self) -> list[str | None]:
        return [node.name for node in self.graph]


def test_only_what_served_the_attention_goes() -> None:
    """Nodes before and after are kept, also an unused one; an initializer of the old nodes is removed."""
    it = _Graph()
    done = lower(it.model, it.attention, Form.DECOMPOSED)
    assert {"node_before", "node_unread", "node_after"} < set(it.names)
    assert {"node_turned", "node_product", "node_scaled", "node_weights", "node_mixed"}.isdisjoint(it.names)
    assert dict(it.graph.initializers) == {}
    assert done.output.name == "mixed"
    assert it.after.inputs[0] is done.output
    onnx.checker.check_model(ir.to_proto(it.model), full_check=True)


def test_intermediate_with_another_user_stays() -> None:
    """Weights that are a model output are still computed; the other old nodes are removed."""
    it = _Graph()
    weights = it.nodes[4].outputs[0]
    weights.shape = ir.Shape(["batch_size", 2, "q_seq_len", "q_seq_len"])
    it.graph.outputs.append(weights)
    lower(it.model, it.attention, Form.DECOMPOSED)
    assert {"node_turned", "node_product", "node_scaled", "node_weights"} < set(it.names)
    assert "node_mixed" not in it.names
    assert list(it.graph.initializers) == ["factor"]
    onnx.checker.check_model(ir.to_proto(it.model), full_check=True)


def test_user_in_a_subgraph_is_moved() -> None:
    """A subgraph that reads the output reads the new one; nodes that a subgraph reads are kept."""
    it = _Graph()
    mixed, weights = it.attention.output, it.nodes[4].outputs[0]
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = _named(ir.node("Abs", [mixed]), f"inner_{name}")
        also = _named(ir.node("Abs", [weights]), f"also_{name}")
        branches[name] = ir.Graph([], [inner.outputs[0], also.outputs[0]], nodes=[inner, also], name=name)
        also.outputs[0].shape = None
    condition = ir.Value(name="condition", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    it.graph.inputs.append(condition)
    chosen = ir.node("If", [condition], attributes=branches, num_outputs=2)
    _named(chosen, "chosen", "chosen_weights")
    chosen.outputs[1].shape = None
    it.graph.append(chosen)
    done = lower(it.model, it.attention, Form.DECOMPOSED)
    assert all(branch.node(0).inputs[0] is done.output for branch in branches.values())
    assert "node_weights" in it.names
    onnx.checker.check_model(ir.to_proto(it.model))


def test_name_type_and_shape_of_graph_outputs_are_kept() -> None:
    """Outputs of a bare attention keep their names, order, types and shapes in every form."""
    for form, opset in ((Form.DECOMPOSED, 13), (Form.ATTENTION, 25), (Form.ORT_MHA, 18)):
        bare = Bare(spec=SPECS["past"], opset=opset)
        before = [(value.name, value.type, str(value.shape)) for value in bare.build()[0].graph.outputs]
        model = bare.written(form)
        assert [(value.name, value.type, str(value.shape)) for value in model.graph.outputs] == before


def test_missing_shape_is_filled_in() -> None:
    """An output without a shape in the old graph gets the shape that follows from the spec and the query."""
    for name, expected in (("bsh", "[batch_size,q_seq_len,20]"), ("dv", "[batch_size,2,q_seq_len,3]")):
        model, attention = Bare(spec=SPECS[name]).build()
        attention.output.shape = None
        lower(model, attention, Form.DECOMPOSED)
        assert str(model.graph.outputs[0].shape) == expected


def test_input_that_is_made_later_is_waited_for() -> None:
    """A cache computed before the query is replaced too, and the graph is sorted topologically."""
    it = _Graph()
    x = it.before.outputs[0]
    early = _named(ir.node("Identity", [it.x]), "early_cache")
    reader = _named(ir.node("Abs", [early.outputs[0]]), "reader")
    it.graph.insert_before(it.before, [early, reader])
    it.graph.outputs.append(reader.outputs[0])
    late = _named(ir.node("Relu", [x]), "late")
    it.graph.insert_after(it.nodes[5], late)
    attention = replace(it.attention, value=late.outputs[0], present_key=early.outputs[0])
    done = lower(it.model, attention, Form.DECOMPOSED)
    assert reader.inputs[0] is done.present_key
    order = it.names
    assert order.index("node_before") < order.index("node_reader")
    assert order.index("node_late") < order.index("node_after")
    onnx.checker.check_model(ir.to_proto(it.model), full_check=True)


def test_form_after_form_keeps_the_numbers() -> None:
    """An attention that was lowered can be lowered again, and names stay unique."""
    bare = Bare(spec=SPECS["causal"], opset=23)
    model, attention = bare.build()
    for form in (Form.DECOMPOSED, Form.ORT_MHA, Form.DECOMPOSED, Form.ATTENTION):
        attention = lower(model, attention, form)
        names = [value.name for node in model.graph for value in node.outputs]
        assert len(set(names)) == len(names)
    assert Trials(bare=bare, model=model).judge(drawn(bare.spec, [RAGGED])) == []


def test_taken_prefix_is_not_used() -> None:
    """Names of the form have a prefix that no other name of the graph has."""
    it = _Graph()
    it.unread.outputs[0].name = "a/decomposed/Mul_0"
    assert GraphEdits(it.model).free_prefix("a/decomposed") == "a/decomposed_"
    assert GraphEdits(it.model).free_prefix("b/decomposed") == "b/decomposed"


def test_attention_whose_input_was_replaced() -> None:
    """One attention reads another's output: after the first is lowered, the second reads the new value."""
    it = _Graph()
    outer = _named(ir.node("Attention", [it.attention.output] * 3), "outer")
    it.graph.append(outer)
    it.graph.outputs.append(outer.outputs[0])
    mixed = it.attention.output
    second = GraphAttention(
        name="b",
        spec=it.attention.spec,
        dtype=Dtype.FLOAT32,
        query=mixed,
        key=mixed,
        value=mixed,
        output=outer.outputs[0],
    )
    first = lower(it.model, it.attention, Form.DECOMPOSED)
    assert with_current_values(second).query is first.output
    lower(it.model, second, Form.DECOMPOSED)
    onnx.checker.check_model(ir.to_proto(it.model), full_check=True)


def test_contrib_domain_is_imported_once_needed() -> None:
    """Only forms with operators of that domain import it."""
    for form, expected in ((Form.DECOMPOSED, {"": 18}), (Form.ORT_MHA, {"": 18, "com.microsoft": 1})):
        model, attention = Bare(spec=SPECS["plain"]).build()
        lower(model, attention, form)
        assert dict(model.opset_imports) == expected


def test_external_numbers_are_not_read() -> None:
    """A missing external data file is no error: tensors are not read."""
    it = _Graph()
    tensor = ir.ExternalTensor(
        "absent.bin", 0, 4 * 2**30, ir.DataType.FLOAT, shape=ir.Shape([2**30]), name="weight", base_dir="nowhere"
    )
    weight = ir.Value(name="weight", const_value=tensor, type=_FLOAT, shape=ir.Shape([2**30]))
    it.graph.register_initializer(weight)
    reader = _named(ir.node("Abs", [weight]), "reader")
    it.graph.append(reader)
    lower(it.model, it.attention, Form.DECOMPOSED)
    assert it.graph.initializers["weight"].const_value is tensor


def test_one_value_for_two_outputs_is_copied() -> None:
    """Two outputs need two names, and an input keeps its name."""
    model, attention = Bare(spec=SPECS["past"]).build()
    nodes = Nodes(GraphEdits(model).free_prefix("mine"))
    built = build_form(nodes, attention, Form.DECOMPOSED, opset=18)
    same = FormOutputs(output=built.output, present_key=attention.key, present_value=attention.key)
    insert_form(model, attention, nodes, same)
    assert [value.name for value in model.graph.outputs] == ["Y", "present_key", "present_value"]
    assert attention.key.name == "K"
    onnx.checker.check_model(ir.to_proto(model))


def test_output_that_is_not_built_is_an_error() -> None:
    """A form that does not build the cache is an error."""
    model, attention = Bare(spec=SPECS["past"]).build()
    nodes = Nodes("mine")
    built = build_form(nodes, attention, Form.DECOMPOSED, opset=18, options=LowerOptions())
    with pytest.raises(ExportError) as caught:
        insert_form(model, attention, nodes, FormOutputs(output=built.output))
    assert str(caught.value) == "The form has no output present_key for attention 'attention'."


def test_attention_of_another_graph_is_an_error() -> None:
    """An output that no node of the model computes cannot be replaced."""
    model, attention = Bare(spec=SPECS["plain"]).build()
    with pytest.raises(ExportError) as caught:
        lower(model, replace(attention, output=_value("elsewhere")), Form.DECOMPOSED)
    assert str(caught.value) == "Attention 'attention' is not in the model."


@pytest.mark.parametrize("form", [Form.DECOMPOSED, Form.ATTENTION, Form.ORT_MHA])
def test_two_writings_are_equal(form: Form) -> None:
    """Lowering the same attention twice gives the same bytes."""
    texts = [ir.to_proto(Bare(spec=SPECS["float-mask"], opset=23).written(form)).SerializeToString() for _ in "ab"]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("form", "opset"), [(Form.DECOMPOSED, 13), (Form.ATTENTION, 23), (Form.ORT_MHA, 18), (Form.ORT_GQA, 18)]
)
def test_every_value_has_its_type(form: Form, opset: int) -> None:
    """Every new value has an element type, which shape inference confirms."""
    spec = replace(SPECS["causal"], mask="bool", left_window=2)
    bare = Bare(spec=spec, opset=opset, is_self=True, dtype=Dtype.FLOAT16)
    model = bare.written(form)
    stated = {value.name: value.dtype for node in model.graph for value in node.outputs if value.name}
    assert None not in stated.values()
    forgetful = ir.from_proto(ir.to_proto(model))
    for node in forgetful.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.type = value.shape = None
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(forgetful)))
    found = {value.name: value.dtype for node in inferred.graph for value in node.outputs if value.dtype is not None}
    assert found.items() <= stated.items()
