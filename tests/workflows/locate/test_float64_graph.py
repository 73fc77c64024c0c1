"""A graph in float64: nothing is rounded between nodes, and values computed from sizes keep the graph's type."""

import tracemalloc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper, parser

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.workflows.locate.float64_graph import Float64Graph
from sdpa_onnx.workflows.locate.reference_nodes import NoReference, widened

_X = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)


def _model(text: str) -> OnnxModel:
    return load_model(parser.parse_model(text))


def test_nothing_is_rounded() -> None:
    """Two nodes in float64; the float32 graph would round in between, and so would a Cast to float16."""
    model = _model(
        """<ir_version: 8, opset_import: ["" : 18]>
        two (float[2, 5] x) => (float[2, 5] y)
        { small = Cast <to = 10> (x)  wide = Cast <to = 1> (small)  root = Exp (wide)  y = Mul (root, root) }"""
    )
    run = Float64Graph(model).run({"x": _X}, ["y"])
    assert run.values["y"].dtype == np.float64
    np.testing.assert_allclose(run.values["y"], np.exp(_X.astype(np.float64)) ** 2, rtol=1e-15)


def test_sizes_are_computed_in_the_graphs_own_type() -> None:
    """A scale computed from a length in float32 is that number, not a more accurate one."""
    model = _model(
        """<ir_version: 8, opset_import: ["" : 18]>
        scaled (float[2, 5] x) => (float[2, 5] y)
        <float one = {1.0}, int64 place = {1}>
        { shape = Shape (x)  size = Gather (shape, place)  width = Cast <to = 1> (size)
          root = Sqrt (width)  scale = Div (one, root)  y = Mul (x, scale) }"""
    )
    run = Float64Graph(model).run({"x": _X}, ["y", "scale"])
    scale = np.float32(1.0) / np.sqrt(np.float32(5.0))
    assert run.values["scale"] == np.float64(scale)
    np.testing.assert_array_equal(run.values["y"], _X.astype(np.float64) * np.float64(scale))


def test_steps_are_named_and_taken_as_given() -> None:
    """An integer computed from a float may be off by one: the runtime's value is used."""
    model = _model(
        """<ir_version: 8, opset_import: ["" : 18]>
        bucket (float[2, 5] x) => (int64[2, 5] y) <float ten = {10.0}>
        { scaled = Mul (x, ten)  y = Cast <to = 7> (scaled) }"""
    )
    truth = Float64Graph(model)
    assert truth.steps == ("y",)
    given = np.full((2, 5), 7)
    assert (truth.run({"x": _X}, ["y"], given={"y": given}).values["y"] == 7).all()


def _contrib() -> OnnxModel:
    nodes = [
        helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft", num_heads=2),
        helper.make_node("Gelu", ["o"], ["y"], domain="com.microsoft"),
    ]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3, 8]) for name in ("q", "k", "v", "y")]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "contrib", values[:3], values[3:])
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4, layout=Layout.BSH)
    site = AttentionSite(name="mha", spec=spec, query="q", key="k", value="v", output="o")
    model = load_model(helper.make_model(graph, opset_imports=imports, ir_version=8))
    return OnnxModel(ir=model.ir, sites=(site,))


def test_nodes_without_reference_are_reported() -> None:
    """The oracle computes an attention, the runtime another node, and both are reported."""
    model, truth = _contrib(), Float64Graph(_contrib())
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((1, 3, 8)).astype(np.float32) for name in ("q", "k", "v")}
    blind = truth.run(feeds, ["o", "y"])
    inputs = AttentionInputs(query=feeds["q"], key=feeds["k"], value=feeds["v"])
    np.testing.assert_allclose(blind.values["o"], attend(model.sites[0].spec, inputs).output, rtol=1e-12)
    assert (blind.by_oracle, "y" in blind.values) == (("mha",), False)
    assert blind.reason == "'Gelu -> y' (Gelu): onnx.reference has no operator Gelu of domain com.microsoft"

    def run_alone(node: ir.Node, reads: object) -> dict[str, np.ndarray] | NoReference:
        return {"y": np.ones((1, 3, 8), np.float32)} if node.op_type == "Gelu" else NoReference("no")

    truth.stand_in = run_alone
    seen = truth.run(feeds, ["y"])
    assert (seen.stood_in, seen.reason) == (("Gelu -> y",), "")


@pytest.mark.parametrize("name", ["x", "ten"])
def test_inputs_and_constants_can_be_asked_for(name: str) -> None:
    """A site may name either."""
    model = _model(
        """<ir_version: 8, opset_import: ["" : 18]>
        one (float[2, 5] x) => (float[2, 5] y) <float ten = {10.0}> { y = Mul (x, ten) }"""
    )
    assert Float64Graph(model).run({"x": _X}, [name]).values[name].dtype == np.float64


def test_weight_is_widened_once_for_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of several sizes share each weight, and return the same values as separate runs."""
    model = _model(
        """<ir_version: 8, opset_import: ["" : 18]>
        two (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1.0, 2.0, 3.0, 5.0}>
        { a = MatMul (x, w)  y = Exp (a) }"""
    )
    inputs = [np.linspace(-1.0, 1.0, 2 * rows, dtype=np.float32).reshape(rows, 2) for rows in (3, 4)]
    alone = [Float64Graph(model).run({"x": x}, ["y"]) for x in inputs]
    seen: list[tuple[int, ...]] = []

    def counted(array: np.ndarray) -> np.ndarray:
        seen.append(array.shape)
        return widened(array)

    monkeypatch.setattr("sdpa_onnx.workflows.locate.float64_graph.widened", counted)
    together = Float64Graph(model).run_all([({"x": x}, {}) for x in inputs], ["y"])
    assert seen.count((2, 2)) == 1
    for one, other, x in zip(alone, together, inputs, strict=True):
        np.testing.assert_array_equal(one.values["y"], other.values["y"])
        assert other.values["y"].shape == x.shape


def test_weights_of_one_node_are_held_at_a_time() -> None:
    """The float64 copies of a model's weights would be more than its runtime needs."""
    layers, width = 16, 256
    weights = [numpy_helper.from_array(np.eye(width, dtype=np.float32), f"w{number}") for number in range(layers)]
    nodes = [helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"x{number + 1}"]) for number in range(layers)]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, width]) for name in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    truth = Float64Graph(
        load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    )
    x = np.ones((1, width), np.float32)
    tracemalloc.start()
    run = truth.run({"x0": x}, [f"x{layers}"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(run.values[f"x{layers}"], x)
    assert peak < 8 * width**2 * layers / 4
