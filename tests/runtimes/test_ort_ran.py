"""What ONNX Runtime says it ran, against models whose fate is known."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, get_runtime
from sdpa_onnx.runtimes.ort_ran import count_fused
from tests.runtimes.models import ELEMENTS, Problem, decomposed, draw, formula, model, model_of

CPU = "CPUExecutionProvider"

# onnxruntime 1.31 does not know opset 25: it takes the kernel of 24 for it, and refuses windows.
knows_opset_25 = pytest.mark.skipif(
    tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < (1, 32),
    reason="this onnxruntime does not know opset 25",
)


def ran(loaded: OnnxModel) -> RanReport:
    with get_runtime("ort-cpu").load(loaded, LoadOptions()) as session:
        return session.ran()


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attention_of_opset_23_and_24_is_one_kernel(opset: int, dtype: str) -> None:
    """The kernel is kept whole, so one node ran and nothing needs saying."""
    assert ran(model(Problem(opset=opset, dtype=dtype))) == RanReport(
        providers={CPU: 1}, node_counts={"Attention": 1}, precision=dtype
    )


@knows_opset_25
def test_attention_of_opset_25_is_expanded() -> None:
    """The graph that was asked for is not the graph that runs, and the report says into how much."""
    report = ran(model(Problem(opset=25)))
    assert "Attention" not in report.node_counts
    assert report.expanded == {"Attention": sum(report.node_counts.values())}
    assert report.providers == {CPU: report.expanded["Attention"]}
    assert report.warnings == (f"Attention was expanded into {report.expanded['Attention']} nodes.",)
    assert report.expanded["Attention"] > 20


@knows_opset_25
def test_a_window_is_expanded_further() -> None:
    """Windows exist only in opset 25 and cost nodes of their own."""
    plain = ran(model(Problem(opset=25))).expanded["Attention"]
    assert ran(model(Problem(opset=25, attributes={"left_window_size": 2}))).expanded["Attention"] > plain


def test_float64_attention_is_no_float64_arithmetic() -> None:
    """The expansion keeps the scale in float32: the declared precision is weaker than the type, and it must be."""
    problem = Problem(dtype="float64")
    report = ran(model(problem))
    assert report.precision == "float32"
    assert report.warnings == (
        f"Attention was expanded into {report.expanded['Attention']} nodes.",
        "The expansion of Attention holds the scale in float32, so the result is no float64 one.",
    )
    feeds = draw(problem)
    with get_runtime("ort-cpu").load(model(problem), LoadOptions()) as session:
        error = np.abs(session.run(feeds)["Y"] - formula(problem, feeds)).max()
    assert 1e-10 < error < 1e-6


def test_decomposed_float64_is_float64_arithmetic() -> None:
    """Without an expansion float64 means what it says."""
    problem = Problem(dtype="float64")
    feeds = draw(problem)
    with get_runtime("ort-cpu").load(decomposed("float64"), LoadOptions()) as session:
        assert session.ran().precision == "float64"
        assert np.abs(session.run(feeds)["Y"] - formula(problem, feeds)).max() < 1e-14


def test_fused_operators_are_counted_after_fusion() -> None:
    """Five nodes became three, and no fusion passes for an expansion."""
    report = ran(decomposed())
    assert report.fused == {"FusedMatMul": 1}
    assert report.node_counts == {"FusedMatMul": 1, "MatMul": 1, "Softmax": 1}
    assert report.providers == {CPU: 3}
    assert report.expanded == {}


def test_float16_softmax_is_expanded_and_cast() -> None:
    """ONNX Runtime has no float16 softmax on the CPU: it writes it out and casts around it."""
    report = ran(decomposed("float16"))
    assert report.expanded == {"Softmax": 5}
    assert report.node_counts["Cast"] >= 1
    assert report.warnings == (
        "Softmax was expanded into 5 nodes.",
        "7 float16 nodes ran in float32, with 4 casts that a float32 file does not need.",
    )
    assert report.fused == {"FusedMatMul": 1}


def test_without_optimisation_the_nodes_are_the_models_own() -> None:
    """Nothing is fused; what has no float16 kernel is expanded and cast all the same."""
    with get_runtime("ort-cpu").load(decomposed(), LoadOptions(optimise=False)) as session:
        report = session.ran()
    assert report.node_counts == {"MatMul": 2, "Mul": 1, "Softmax": 1, "Transpose": 1}
    assert report.fused == {}
    with get_runtime("ort-cpu").load(decomposed("float16"), LoadOptions(optimise=False)) as session:
        report = session.ran()
    assert report.fused == {}
    assert report.warnings == (
        "Softmax was expanded into 5 nodes.",
        "8 float16 nodes ran in float32, with 5 casts that a float32 file does not need.",
    )


def node(op_type: str, inputs: list[str], outputs: list[str], domain: str = "") -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, domain=domain)


RAN_NODES = {
    "kept": ([node("Attention", ["Q", "K", "V"], ["Y"])], {}),
    "of another domain": ([node("Attention", ["Q", "K", "V"], ["Y"], "com.microsoft")], {"Attention": 1}),
    "of the default domain's other name": ([node("Attention", ["Q", "K", "V"], ["Y"], "ai.onnx")], {}),
    "fused twice": (
        [node("FusedMatMul", ["Q", "K"], ["S"]), node("FusedMatMul", ["S", "V"], ["Y"])],
        {"FusedMatMul": 2},
    ),
    "cast in passing": ([node("Cast", ["Q"], ["InsertedPrecisionFreeCast_Q"])], {}),
    "of an expanded body": ([node("Exp", ["a"], ["_inlfunc_Attention_b"]), node("Div", ["b"], ["Y"])], {}),
}


@pytest.mark.parametrize(("nodes", "fused"), RAN_NODES.values(), ids=RAN_NODES.keys())
def test_what_counts_as_fused(nodes: list[onnx.NodeProto], fused: dict[str, int]) -> None:
    """An operator that is neither the model's nor of an expanded body is fused, whatever its name."""
    assert count_fused(model(Problem()), nodes) == fused


def test_kernels_of_microsoft_are_counted() -> None:
    """A layer normalisation behind an addition becomes one operator of ONNX Runtime's own."""
    shape = ["batch", "len", 8]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("X", "R")]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)
    nodes = [node("Add", ["X", "R"], ["S"]), node("LayerNormalization", ["S", "gamma", "beta"], ["Y"])]
    weights = tuple(helper.make_tensor(name, TensorProto.FLOAT, [8], [1.0] * 8) for name in ("gamma", "beta"))
    report = ran(load_model(model_of(nodes, inputs, [output], opset=18, constants=weights)))
    assert report.fused == {"SkipLayerNormalization": 1}
    assert report.expanded == {}


def two_attentions(opset: int, *, in_loop: bool) -> OnnxModel:
    """One Attention after another, the first inside a Loop if asked."""
    shape = ["batch", 2, "len", 8]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "QKV"]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)
    first = helper.make_node("Attention", ["Q", "K", "V"], ["A"], name="first")
    constants = ()
    if in_loop:
        carried = helper.make_tensor_value_info("A_out", TensorProto.FLOAT, shape)
        more = helper.make_tensor_value_info("more", TensorProto.BOOL, [])
        body = helper.make_graph(
            [
                helper.make_node("Attention", ["A_in", "K", "V"], ["A_out"], name="inner"),
                helper.make_node("Identity", ["again"], ["more"], name="keep"),
            ],
            "body",
            [
                helper.make_tensor_value_info("step", TensorProto.INT64, []),
                helper.make_tensor_value_info("again", TensorProto.BOOL, []),
                helper.make_tensor_value_info("A_in", TensorProto.FLOAT, shape),
            ],
            [more, carried],
        )
        first = helper.make_node("Loop", ["times", "go", "Q"], ["A"], name="loop", body=body)
        constants = (helper.make_tensor("times", TensorProto.INT64, [], [2]),)
        constants += (helper.make_tensor("go", TensorProto.BOOL, [], [1]),)
    second = helper.make_node("Attention", ["A", "K", "V"], ["Y"], name="second")
    return load_model(model_of([first, second], inputs, [output], opset=opset, constants=constants))


@knows_opset_25
@pytest.mark.parametrize("in_loop", [False, True])
def test_every_attention_is_counted_in_subgraphs_too(in_loop: bool) -> None:
    """Two kept nodes count as two, two expanded ones as twice one, inside a Loop as well."""
    assert ran(two_attentions(24, in_loop=in_loop)).node_counts["Attention"] == 2
    report = ran(two_attentions(25, in_loop=in_loop))
    # Static heads and widths are folded, so the count is compared with one node of the same shapes.
    once = ran(model(Problem(opset=25))).expanded["Attention"]
    assert report.expanded == {"Attention": 2 * once}
    assert report.warnings == (f"2 Attention nodes were expanded into {2 * once} nodes.",)


@knows_opset_25
def test_nodes_beside_an_expansion_are_not_counted_to_it() -> None:
    """What was there before stays outside the number."""
    shape = ["batch", 2, "len", 8]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "QKV"]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)
    nodes = [
        helper.make_node("Attention", ["Q", "K", "V"], ["A"], name="attend"),
        helper.make_node("Sin", ["A"], ["B"], name="sin"),
        helper.make_node("Cos", ["B"], ["Y"]),
    ]
    report = ran(load_model(model_of(nodes, inputs, [output], opset=25)))
    assert sum(report.node_counts.values()) == report.expanded["Attention"] + 2


def test_the_report_is_read_once() -> None:
    """A second call gives the very same report, without loading the model again."""
    with get_runtime("ort-cpu").load(model(Problem()), LoadOptions()) as session:
        assert session.ran() is session.ran()


def test_bfloat16_travels_as_bits() -> None:
    """A bfloat16 input and output pass through unchanged where ONNX Runtime has kernels (Cast)."""
    element = ELEMENTS["bfloat16"]
    x = helper.make_tensor_value_info("X", element, ["n", 3])
    y = helper.make_tensor_value_info("Y", element, ["n", 3])
    nodes = [
        helper.make_node("Cast", ["X"], ["W"], to=TensorProto.FLOAT, name="widen"),
        helper.make_node("Neg", ["W"], ["N"], name="negate"),
        helper.make_node("Cast", ["N"], ["Y"], to=element, name="narrow"),
    ]
    loaded = load_model(model_of(nodes, [x], [y], opset=18))
    feeds = draw(Problem(dtype="bfloat16"))["Q"][0, 0][:, :3]
    with get_runtime("ort-cpu").load(loaded, LoadOptions()) as session:
        for array in (feeds, feeds[:0]):
            actual = session.run({"X": array})["Y"]
            assert actual.dtype == array.dtype
            assert np.array_equal(actual, -array)
        bound = session.bind({"X": feeds})
        bound()
        assert np.array_equal(bound.outputs()["Y"], -feeds)


@pytest.mark.parametrize(("dtype", "is_read"), [("float32", False), ("float64", True)])
def test_large_model_is_not_loaded_once_more(monkeypatch: pytest.MonkeyPatch, dtype: str, *, is_read: bool) -> None:
    """Its optimised graph stays unread, which is told; in float64 the precision hangs on it."""
    monkeypatch.setattr("sdpa_onnx.graph.files.large._LARGE_BYTES", -1)
    report = ran(decomposed(dtype=dtype))
    assert report.precision == dtype
    assert bool(report.node_counts) == is_read
    assert set(report.providers) == {CPU}
    unread = (
        "The model is above 500 MB, so the optimised graph was not read: ONNX Runtime would hold it several times. "
        "What was fused or expanded is not known."
    )
    assert report.warnings == (() if is_read else (unread,))
