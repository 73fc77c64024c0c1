"""ONNX's evaluator beyond the conformance suite: what it refuses, and how exact it is."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Supported, Unsupported
from sdpa_onnx.runtimes.onnx_reference import OnnxReference
from tests.runtimes.models import Problem, decomposed, draw, formula, model, model_of


def loop_model(*, cond: str) -> OnnxModel:
    """A Loop that doubles X three times; `cond` is its condition input, "" leaves it out."""
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n"])
    flag = {name: helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("again", "more")}
    inner = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("a", "b")}
    nodes = [helper.make_node("Add", ["a", "a"], ["b"]), helper.make_node("Identity", ["again"], ["more"])]
    step = helper.make_tensor_value_info("step", TensorProto.INT64, [])
    body = helper.make_graph(nodes, "body", [step, flag["again"], inner["a"]], [flag["more"], inner["b"]])
    loop = helper.make_node("Loop", ["times", cond, "X"], ["Y"], body=body)
    constants = (
        helper.make_tensor("times", TensorProto.INT64, [], [3]),
        helper.make_tensor("go", TensorProto.BOOL, [], [1]),
    )
    return load_model(model_of([loop], [x], [y], opset=18, constants=constants))


def test_a_loop_with_a_condition_runs() -> None:
    """Subgraphs are run and counted."""
    loaded = loop_model(cond="go")
    assert OnnxReference().supports(loaded) == Supported()
    with OnnxReference().load(loaded, LoadOptions()) as session:
        assert session.run({"X": np.ones(2, np.float32)})["Y"].tolist() == [8, 8]
        assert session.ran().node_counts == {"Add": 1, "Identity": 1, "Loop": 1}


def test_a_loop_without_a_condition_is_refused() -> None:
    """The evaluator would run it zero times without a word, which is why it is refused."""
    loaded = loop_model(cond="")
    reason = "onnx.reference runs zero iterations of a Loop whose cond input is omitted"
    assert OnnxReference().supports(loaded) == Unsupported(reason)
    with OnnxReference().load(loaded, LoadOptions()) as session:
        assert session.run({"X": np.ones(2, np.float32)})["Y"].tolist() == [1, 1]


def test_other_domains_are_refused() -> None:
    """Contrib operators are unknown to ONNX: a reason, not an exception in a run."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", "s", 16]) for n in "QKVY"]
    node = helper.make_node("MultiHeadAttention", ["Q", "K", "V"], ["Y"], domain="com.microsoft", num_heads=2)
    loaded = load_model(model_of([node], values[:3], values[3:], opset=18))
    assert OnnxReference().supports(loaded) == Unsupported(
        "onnx.reference has no operator MultiHeadAttention of domain com.microsoft"
    )


def test_what_ran_is_the_model() -> None:
    """Nothing is optimised, so the counts are the model's own."""
    with OnnxReference().load(decomposed("float16"), LoadOptions()) as session:
        assert session.ran() == RanReport(
            providers={"numpy": 5},
            node_counts={"MatMul": 2, "Mul": 1, "Softmax": 1, "Transpose": 1},
            precision="float16",
        )


@pytest.mark.parametrize(("attributes", "precision", "limit"), [({}, "float64", 1e-14), ({"scale": 0.3}, "float32", 1)])
def test_float64_is_exact_only_without_a_scale(attributes: dict[str, float], precision: str, limit: float) -> None:
    """A scale attribute is a float32, so a float64 result with one is declared as float32."""
    problem = Problem(dtype="float64", attributes=attributes)
    feeds = draw(problem)
    with OnnxReference().load(model(problem), LoadOptions()) as session:
        assert session.ran().precision == precision
        assert np.abs(session.run(feeds)["Y"] - formula(problem, feeds)).max() < limit


def test_bfloat16_sums_stop_at_256_keys() -> None:
    """The warning on bfloat16 is true: 1024 equal keys weigh 1/256 each, so the mean comes out four times too large."""
    problem = Problem(dtype="bfloat16", kv_seq_len=1024)
    feeds = draw(problem)
    feeds["K"], feeds["V"] = np.zeros_like(feeds["K"]), np.ones_like(feeds["V"])
    with OnnxReference().load(model(problem), LoadOptions()) as session:
        assert session.run(feeds)["Y"].astype(np.float32).max() == 4.0
        assert session.ran().warnings == (
            "onnx.reference adds a softmax row in bfloat16, key by key: above 256 equal keys the sum stops growing.",
        )
