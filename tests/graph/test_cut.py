"""Parts cut out of a graph compute what the whole computes there, and say clearly where they cannot be cut."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.cut import cut_out, cut_site
from sdpa_onnx.graph.model import SITES_KEY, SPEC_KEY, OnnxModel, load_model
from sdpa_onnx.graph.model_facts import TRACED_KEY
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.export.export_target import export_target
from tests.graph.models import SPECS, bare, inner_attention, model_of
from tests.workflows.user_modules import SelfAttention, hidden, seeded

Arrays = dict[str, NDArray[np.generic]]


def _run(model: OnnxModel, feeds: Arrays) -> Arrays:
    with get_runtime("onnx-reference").load(model, LoadOptions()) as session:
        return session.run({name: array for name, array in feeds.items() if name in model.input_names})


def _chain(*, opset: int = 23) -> onnx.ModelProto:
    """Two inputs, a branch of constants, a value that two nodes read, no types in between."""
    return model_of(
        [
            helper.make_node("Add", ["w", "w"], ["ww"], name="double"),
            helper.make_node("MatMul", ["x", "ww"], ["a"], name="first"),
            helper.make_node("Relu", ["a"], ["b"], name="second"),
            helper.make_node("Add", ["b", "other"], ["c"], name="third"),
            helper.make_node("Mul", ["c", "a"], ["y"], name="fourth"),
        ],
        {"x": ["n", 4], "other": ["n", 4]},
        {"y": ["n", 4]},
        {"w": np.arange(16, dtype=np.float32).reshape(4, 4) / 8},
        opset=opset,
    )


@pytest.mark.parametrize("opset", [18, 25])
def test_part_computes_what_the_whole_does(opset: int) -> None:
    """Between two inner values the part gives the whole model's numbers, and the source is as it was."""
    whole = load_model(_chain(opset=opset))
    before = whole.to_bytes()
    rng = np.random.default_rng(0)
    feeds: Arrays = {name: rng.standard_normal((3, 4)).astype(np.float32) for name in ("x", "other")}
    taps = _run(whole.tapped(["a", "b", "c"]), feeds)
    part = cut_out(whole, inputs=["a", "other"], outputs=["c", "y"])
    assert (part.input_names, part.output_names, part.opset) == (("a", "other"), ("c", "y"), opset)
    assert part.node_counts() == {"Relu": 1, "Add": 1, "Mul": 1}
    assert not part.ir.graph.initializers
    got = _run(part, {"a": taps["a"], "other": feeds["other"]})
    assert np.array_equal(got["y"], taps["y"])
    assert np.array_equal(got["c"], taps["c"])
    assert whole.to_bytes() == before
    onnx.checker.check_model(onnx.load_from_string(part.to_bytes()), full_check=True)


def test_nodes_of_constants_come_along() -> None:
    """What depends on initializers only is kept, with the initializers."""
    part = cut_out(load_model(_chain()), inputs=["x"], outputs=["b"])
    assert part.node_counts() == {"Add": 1, "MatMul": 1, "Relu": 1}
    assert list(part.ir.graph.initializers) == ["w"]


def test_initializer_as_input() -> None:
    """An initializer that is named as an input is one, and its content is gone."""
    part = cut_out(load_model(_chain()), inputs=["x", "w"], outputs=["a"])
    assert part.input_names == ("x", "w")
    assert not part.ir.graph.initializers
    value = part.input_value("w")
    assert (value.dtype.numpy() if value.dtype else None, value.shape) == (np.float32, (4, 4))


def test_types_and_shapes_are_inferred() -> None:
    """A graph that states nothing of its inner values still gives inputs with types and symbolic shapes."""
    part = cut_out(load_model(_chain()), inputs=["c", "a"], outputs=["y"])
    assert [str(value.shape) for value in part.ir.graph.inputs] == ["[n,4]", "[n,4]"]
    assert {value.dtype.numpy().name for value in part.ir.graph.inputs if value.dtype} == {"float32"}


def test_input_that_a_needed_node_makes() -> None:
    """A value named as an input stays one though its node runs for the sake of another output."""
    nodes = [
        helper.make_node("Split", ["x"], ["left", "right"], axis=1, num_outputs=2, name="split"),
        helper.make_node("Add", ["left", "right"], ["y"], name="add"),
    ]
    whole = load_model(model_of(nodes, {"x": ["n", 4]}, {"y": ["n", 2]}))
    part = cut_out(whole, inputs=["x", "left"], outputs=["y"])
    rng = np.random.default_rng(0)
    x, left = rng.standard_normal((3, 4)).astype(np.float32), np.full((3, 2), 100, np.float32)
    assert np.array_equal(_run(part, {"x": x, "left": left})["y"], left + x[:, 2:])
    onnx.checker.check_model(onnx.load_from_string(part.to_bytes()))


def _with_if() -> onnx.ModelProto:
    """An If whose branches read a value of the outer graph."""

    def branch(operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["a", "other"], [f"in_{operator}"])
        out = helper.make_tensor_value_info(f"in_{operator}", TensorProto.FLOAT, None)
        return helper.make_graph([node], operator, [], [out])

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("If", ["yes"], ["y"], name="choice", then_branch=branch("Add"), else_branch=branch("Mul")),
    ]
    return model_of(nodes, {"x": ["n"], "other": ["n"]}, {"y": ["n"]}, {"yes": np.array(True)})


def test_captured_values_count() -> None:
    """What a subgraph captures is a need of its node."""
    part = cut_out(load_model(_with_if()), inputs=["a", "other"], outputs=["y"])
    got = _run(part, {"a": np.array([1.0, 2.0], np.float32), "other": np.array([3.0, 4.0], np.float32)})
    assert got["y"].tolist() == [4.0, 6.0]
    with pytest.raises(ModelError) as caught:
        cut_out(load_model(_with_if()), inputs=["a"], outputs=["y"])
    assert str(caught.value) == (
        "'y' cannot be computed from 'a' alone: it also needs the input 'other'. Name that value as an input too."
    )


def test_needs_another_input() -> None:
    """Outputs that need an input that was not named are refused, and the input is named."""
    with pytest.raises(ModelError) as caught:
        cut_out(load_model(_chain()), inputs=["b", "a"], outputs=["y"])
    assert str(caught.value) == (
        "'y' cannot be computed from 'b', 'a' alone: it also needs the input 'other'. Name that value as an input too."
    )


def _with_function() -> onnx.ModelProto:
    inner = [helper.make_node("Relu", ["p"], ["q"]), helper.make_node("Neg", ["q"], ["r"])]
    function = helper.make_function("local", "Fold", ["p"], ["r"], inner, [helper.make_opsetid("", 23)])
    model = model_of(
        [helper.make_node("Fold", ["x"], ["a"], domain="local"), helper.make_node("Exp", ["a"], ["y"])],
        {"x": ["n"]},
        {"y": ["n"]},
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model


def test_functions_come_along() -> None:
    """A node that is a call of the model's own function still finds it."""
    part = cut_out(load_model(_with_function()), inputs=["x"], outputs=["a"])
    assert _run(part, {"x": np.array([-1.0, 2.0], np.float32)})["a"].tolist() == [0.0, -2.0]


@pytest.mark.parametrize(
    ("model", "name", "text"),
    [
        (_chain(), "zz", "The model has no value 'zz'."),
        (
            _with_if(),
            "in_Add",
            (
                "The model has no value 'in_Add': it lies inside a subgraph (of a Loop, If or Scan), and a part is "
                "cut out of the main graph only."
            ),
        ),
        (
            _with_function(),
            "q",
            "The model has no value 'q': it lies inside a function, and a part is cut out of the main graph only.",
        ),
    ],
    ids=["unknown", "subgraph", "function"],
)
def test_values_that_cannot_be_cut_at(model: onnx.ModelProto, name: str, text: str) -> None:
    """A value that is not in the main graph is refused, and the text says where it lies."""
    for inputs, outputs in (([name], ["y"]), (["x"], [name])):
        with pytest.raises(ModelError) as caught:
            cut_out(load_model(model), inputs=inputs, outputs=outputs)
        assert str(caught.value) == text


def test_no_outputs() -> None:
    """A part without outputs is refused."""
    with pytest.raises(ModelError) as caught:
        cut_out(load_model(_chain()), inputs=["x"], outputs=[])
    assert str(caught.value) == "A part of a model needs at least one output. Name a value that it computes."


def test_unknown_type() -> None:
    """A value made by an operator that shape inference does not know has no type, and is named."""
    nodes = [
        helper.make_node("Mystery", ["x"], ["a"], domain="com.microsoft"),
        helper.make_node("Exp", ["a"], ["y"]),
    ]
    with pytest.raises(ModelError) as caught:
        cut_out(load_model(model_of(nodes, {"x": ["n"]}, {"y": ["n"]})), inputs=["a"], outputs=["y"])
    assert str(caught.value) == (
        "The type of the value 'a' is not known. "
        "Shape inference does not know the operator that makes it; cut at another value."
    )


@pytest.mark.parametrize(
    ("opset", "dtype"),
    [
        (23, "float16"),
        pytest.param(18, "float32", marks=pytest.mark.slow),
        pytest.param(23, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_site_of_a_module(opset: int, dtype: str) -> None:
    """The attention of a module becomes a bare model that gives the module's own tapped output."""
    import torch

    module = seeded(SelfAttention).to(getattr(torch, dtype))
    whole = export_module(module, (hidden().to(getattr(torch, dtype)),), opset=opset)
    assert not whole.is_bare_attention
    site = whole.sites[0]
    part = cut_site(whole, site)
    assert part is not None
    assert part.is_bare_attention
    assert part.sites == (site,)
    assert part.facts.axes == ("batch_size", "x_seq_len")
    assert TRACED_KEY in set(whole.ir.metadata_props) - set(part.ir.metadata_props) <= {TRACED_KEY, SPEC_KEY}
    assert part.ir.metadata_props[SITES_KEY]
    feeds = draw_feeds(whole, {"batch_size": 2, "x_seq_len": 5}, spread=1.0, seed=0)
    taps = _run(whole.tapped(), feeds)
    got = _run(part, {name: taps[name] for name in part.input_names})
    assert np.array_equal(got[site.output], taps[site.output])
    assert load_model(onnx.load_from_string(part.to_bytes())).is_bare_attention


def test_saved_part_reads_back_with_its_site() -> None:
    """The metadata of a part names the sites inside it and no others."""
    whole = load_model(_two_sites())
    assert [site.name for site in whole.sites] == ["one", "two"]
    part = cut_out(whole, inputs=["x"], outputs=["a"])
    again = load_model(onnx.load_from_string(part.to_bytes()))
    assert [site.name for site in part.sites] == [site.name for site in again.sites] == ["one"]


def _two_sites() -> onnx.ModelProto:
    size = ["b", 2, "n", 8]
    nodes = [
        helper.make_node("Attention", ["x", "x", "x"], ["a"], name="one"),
        helper.make_node("Neg", ["a"], ["c"]),
        helper.make_node("Attention", ["a", "c", "x"], ["y"], name="two", is_causal=1),
    ]
    return onnx.shape_inference.infer_shapes(model_of(nodes, {"x": size}, {"y": size}))


def test_one_value_for_three_inputs() -> None:
    """An Attention node that reads one value three times gets three inputs, each used where it belongs."""
    whole = load_model(_two_sites())
    part = cut_site(whole, whole.sites[0])
    assert part is not None
    assert part.is_bare_attention
    assert part.input_names == ("x", "x_as_key", "x_as_value")
    feeds = draw_feeds(part, {"b": 2, "n": 5}, spread=1.0, seed=0)
    direct = cut_site(_bare_like(part), _bare_like(part).sites[0])
    assert direct is not None
    renamed = dict(zip(direct.input_names, feeds.values(), strict=True))
    assert np.array_equal(_run(part, feeds)["a"], _run(direct, renamed)["Y"])


def _bare_like(part: OnnxModel) -> OnnxModel:
    """A model built for the same spec."""
    return bare(part.sites[0].spec)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_bare_attention_is_its_own_part(spec: AttentionSpec) -> None:
    """Cutting the only attention out of a bare model changes nothing that it computes."""
    opset = 25
    whole = bare(spec, opset=opset)
    part = cut_site(whole, whole.sites[0])
    assert part is not None
    assert part.is_bare_attention
    sizes = {"batch_size": 2, "q_seq_len": 3, "kv_seq_len": 5, "past_seq_len": 4}
    feeds = draw_feeds(whole, sizes, spread=1.0, seed=0)
    assert draw_feeds(part, sizes, spread=1.0, seed=0).keys() == feeds.keys()
    assert np.array_equal(_run(part, feeds)["Y"], _run(whole, feeds)["Y"])


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(SPECS["gqa"], id="gqa"),
        pytest.param(SPECS["dv"], id="dv", marks=pytest.mark.slow),
        pytest.param(SPECS["causal"], id="causal", marks=pytest.mark.slow),
    ],
)
def test_decomposed_attention(spec: AttentionSpec) -> None:
    """The formula of standard operators is cut as one attention too."""
    whole = export_target(spec, opset=18, form="decomposed", dtype=Dtype.FLOAT32)
    part = cut_site(whole, whole.sites[0])
    assert part is not None
    sizes = {"batch_size": 2, "q_seq_len": 3, "kv_seq_len": 5}
    feeds = draw_feeds(whole, sizes, spread=1.0, seed=0)
    site = whole.sites[0]
    assert np.array_equal(_run(part, feeds)[site.output], _run(whole, feeds)[site.output])


def test_axes_without_usable_names_get_roles() -> None:
    """Where the graph knows no name, or an expression only, the axes get the names of a bare attention."""
    size = [None, 2, None, 8]
    nodes = [
        helper.make_node("Neg", ["x"], ["q"]),
        helper.make_node("Attention", ["q", "k", "k2", "", "past", "past2"], ["y", "p", "p2"], name="attend"),
    ]
    inputs = {"x": size, "k": [None, 2, "Max(1, n)", 8], "k2": size, "past": size, "past2": size}
    whole = load_model(model_of(nodes, inputs, {"y": size}))
    # Only what the node states can make a site: its inputs must have shapes.
    inferred = load_model(onnx.shape_inference.infer_shapes(onnx.load_from_string(whole.to_bytes())))
    part = cut_site(inferred, inferred.sites[0])
    assert part is not None
    assert [str(value.shape) for value in part.ir.graph.inputs] == [
        "[batch_size,2,q_seq_len,8]",
        "[batch_size,2,kv_seq_len,8]",
        "[batch_size,2,kv_seq_len,8]",
        "[batch_size,2,past_seq_len,8]",
        "[batch_size,2,past_seq_len,8]",
    ]
    assert part.facts.axes == ("batch_size", "q_seq_len", "kv_seq_len", "past_seq_len")


def test_layout_bsh() -> None:
    """The axes of a 3-D attention are named too."""
    spec = SPECS["bsh"]
    assert spec.layout is Layout.BSH
    model = onnx.load_from_string(bare(spec).to_bytes())
    for value in model.graph.input:
        for size in value.type.tensor_type.shape.dim[:2]:
            size.Clear()
    whole = load_model(model)
    part = cut_site(whole, whole.sites[0])
    assert part is not None
    assert [str(value.shape) for value in part.ir.graph.inputs] == [
        "[batch_size,q_seq_len,24]",
        "[batch_size,kv_seq_len,12]",
        "[batch_size,kv_seq_len,10]",
    ]


def test_attention_that_is_not_closed() -> None:
    """A formula that reads the shape of the module's input is no attention by itself."""
    module = load_model(inner_attention())
    proto = onnx.load_from_string(module.to_bytes())
    proto.graph.node.pop(1)
    for node in reversed(
        [
            helper.make_node("Shape", ["x"], ["size"]),
            helper.make_node("Cast", ["size"], ["sizes"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMin", ["sizes"], ["factor"], keepdims=0),
            helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", ["q", "kt"], ["scores"]),
            helper.make_node("Mul", ["scores", "factor"], ["scaled"]),
            helper.make_node("Softmax", ["scaled"], ["weights"]),
            helper.make_node("MatMul", ["weights", "v"], ["inner"]),
        ]
    ):
        proto.graph.node.insert(1, node)
    for name in ("k", "v"):
        proto.graph.node.insert(0, helper.make_node("Identity", ["x"], [name]))
    site = replace(module.sites[0], key="k", value="v")
    assert cut_site(load_model(proto), site) is None
    # The same with one value for key and value: which use is which is not said by the graph.
    for node in proto.graph.node:
        if node.op_type == "Mul":
            node.input[1] = "half"
        if node.input and node.input[-1] == "v":
            node.input[-1] = "k"
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "half"))
    assert cut_site(load_model(proto), site) is not None
    assert cut_site(load_model(proto), replace(site, value="k")) is None
