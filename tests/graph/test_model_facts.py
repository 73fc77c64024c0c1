"""Facts of a graph: read once, of no other graph, and wrong ones only where they are needed."""

from collections.abc import Callable
from dataclasses import fields, replace

import msgspec
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.core.attention.axis_limits import AxisLimit
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.model_facts import FORM_KEY, LIMITS_KEY, TRACED_KEY, ModelFacts
from tests.graph.models import SPECS, bare, model_of


def _noted(**metadata: str) -> OnnxModel:
    model = bare()
    model.ir.metadata_props.update(metadata)
    return load_model(model.ir)


def test_facts_of_one_attention() -> None:
    """Everything that a stage asks is there."""
    facts = bare(SPECS["past"], opset=24, dtype=Dtype.FLOAT16).facts
    assert (facts.form, facts.opset, facts.node_counts) == (Form.ATTENTION, 24, {"Attention": 1})
    assert facts.axes == ("batch_size", "q_seq_len", "kv_seq_len", "past_seq_len")
    assert facts.batch_axes == {"batch_size"}
    assert (facts.dtype, facts.attention_dtype, facts.traced) == (Dtype.FLOAT16, Dtype.FLOAT16, None)
    assert facts.is_bare_attention


def test_every_model_has_its_own_facts() -> None:
    """A copy with another graph or other sites has other facts, and none can be given."""
    model = bare()
    copy = model.ir.clone()
    copy.graph.inputs[0].shape = type(copy.graph.inputs[0].shape)(["b", 4, "n", 8])  # type: ignore[misc]
    assert replace(model, ir=copy).facts.axes == ("b", "n", "batch_size", "kv_seq_len")
    assert model.facts.axes == ("batch_size", "q_seq_len", "kv_seq_len")
    assert not replace(model, sites=()).facts.is_bare_attention
    assert "facts" not in {field.name for field in fields(OnnxModel) if field.init}
    with pytest.raises(ValueError, match="facts"):
        replace(model, facts=model.facts)


def test_attention_dtype_is_of_the_query() -> None:
    """The query's type counts where the first input is of another one; the inputs' where no attention is known."""
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Attention", ["half", "half", "half"], ["y"], q_num_heads=2, kv_num_heads=2),
    ]
    proto = model_of(nodes, {"x": ["batch", "length", 8]}, {"y": ["batch", "length", 8]})
    proto.graph.value_info.append(helper.make_tensor_value_info("half", TensorProto.FLOAT16, ["batch", "length", 8]))
    model = load_model(proto)
    assert [site.query for site in model.sites] == ["half"]
    assert (model.facts.dtype, model.facts.attention_dtype) == (Dtype.FLOAT32, Dtype.FLOAT16)
    assert replace(model, sites=()).facts.attention_dtype is Dtype.FLOAT32


def test_form_that_is_noted_counts() -> None:
    """What a file says that it was converted into, unless that is no form."""
    assert _noted(**{FORM_KEY: "blocked"}).facts.form is Form.BLOCKED
    assert _noted(**{FORM_KEY: "other"}).facts.form is Form.ATTENTION


def test_traced_sizes() -> None:
    """Read from the metadata, else from what the reader of a module put beside the graph."""
    sizes = {"batch_size": 2, "q_seq_len": 5}
    assert _noted(**{TRACED_KEY: msgspec.json.encode(sizes).decode()}).facts.traced == sizes
    model = bare()
    model.ir.meta[TRACED_KEY] = sizes
    assert load_model(model.ir).facts.traced == sizes


def test_axes_that_are_expressions() -> None:
    """Their names are the axes, and a difference is never negative."""
    shapes = {"x": ["4*images", "n"], "past": ["32 - n", "p2o.Dim.0"], "flat": ["images*n", 8]}
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in shapes]
    facts = load_model(model_of(nodes, shapes, {f"{name}_out": shape for name, shape in shapes.items()})).facts
    assert (facts.axes, facts.batch_axes) == (("images", "n", "p2o.Dim.0"), {"images", "n"})
    assert facts.limits == (AxisLimit(size="n", largest=32, source="axis '32 - n' of input 'past'"),)


def test_limits_that_are_noted() -> None:
    """Read from the metadata, together with what the axes imply."""
    limits = (AxisLimit(size="q_seq_len", smallest=2, largest=300, source="model.py:5", tested=(299, 300)),)
    assert _noted(**{LIMITS_KEY: msgspec.json.encode(limits).decode()}).facts.limits == limits
    assert _noted().facts.limits == ()


@pytest.mark.parametrize(
    ("model", "read", "message"),
    [
        (
            lambda: _noted(**{TRACED_KEY: "5"}),
            lambda facts: facts.traced,
            "The metadata 'sdpa_onnx.traced_sizes' of the model cannot be read: Expected `object`, got `int`.",
        ),
        (
            lambda: load_model(model_of([helper.make_node("Identity", ["x"], ["y"])], {"x": [None]}, {"y": ["n"]})),
            lambda facts: facts.batch_axes,
            "Input 'x' has an axis without a name. Name its dynamic axes.",
        ),
        (
            lambda: _noted(**{LIMITS_KEY: '[{"size": "q_seq_len", "step": 0}]'}),
            lambda facts: facts.limits,
            (
                "The metadata 'sdpa_onnx.axis_limits' of the model cannot be read: the sizes of 'q_seq_len' cannot be "
                "0 to None by 0 - at `$[0]`."
            ),
        ),
    ],
)
def test_fault_is_raised_where_it_matters(
    model: Callable[[], OnnxModel], read: Callable[[ModelFacts], object], message: str
) -> None:
    """A graph with a fact that cannot be read is loaded; each use of the fact says why."""
    facts = model().facts
    for _ in range(2):
        with pytest.raises(ModelError) as caught:
            read(facts)
        assert str(caught.value) == message
