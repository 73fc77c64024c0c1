"""Bodies of If, Loop and Scan in float64: nothing is rounded inside, and each turn is stacked."""

import math

import numpy as np
import onnx
import pytest
from onnx import parser

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.worker.onnxruntime_import import import_onnxruntime
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.locate.float64_graph import Float64Graph, Float64Run
from tests.graph.body_models import BODY_MODELS, body_text

_SIZES = {"B": 2, "L": 5, "S": 7, "T": 3, "P": 2}


def _feeds(proto: onnx.ModelProto) -> Feeds:
    draw = np.random.default_rng(4)
    feeds: Feeds = {}
    for value in proto.graph.input:
        shape = [dim.dim_value or _SIZES[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = np.array(True) if kind == np.bool_ else draw.standard_normal(shape).astype(np.float32)
    return feeds


def _in_double(text: str, feeds: Feeds) -> list[np.ndarray]:
    """The same model in float64, in onnxruntime."""
    for number in ("0.1", "0.35355338"):  # as float32 has them
        text = text.replace(f"{{{number}}}", f"{{{float(np.float32(number))!r}}}")
    proto = parser.parse_model(text.replace("float[", "double[").replace("value = float", "value = double"))
    session = import_onnxruntime().InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wide = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in feeds.items()}
    outputs: list[np.ndarray] = session.run(None, wide)
    return outputs


def _model(text: str) -> OnnxModel:
    return load_model(parser.parse_model(text))


def _run(text: str, feeds: Feeds) -> Float64Run:
    model = _model(text)
    return Float64Graph(model).run(feeds, model.output_names)


def _outputs(run: Float64Run, text: str) -> list[np.ndarray]:
    return [run.values[value.name] for value in parser.parse_model(text).graph.output]


@pytest.mark.parametrize("name", BODY_MODELS)
def test_as_the_same_model_in_double(name: str) -> None:
    """Every kind of body, with carried, captured and stacked values."""
    text = body_text(name)
    feeds = _feeds(parser.parse_model(text))
    run = _run(text, feeds)
    assert (run.reason, run.stood_in) == ("", ())
    for found, expected in zip(_outputs(run, text), _in_double(text, feeds), strict=True):
        # Its scale is the root of a constant, which is computed in float32, as in the file.
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-7 if name == "captured-values" else 1e-14)


_ERF = """<ir_version: 8, opset_import: ["" : 18]> g (float[4] x, bool c) => (float[4] y) {
  y = If (c) <then_branch = yes () => (a) { a = Erf (x) }, else_branch = no () => (b) { b = Neg (x) }>
}"""
_SCALED = """<ir_version: 8, opset_import: ["" : 18]> g (float[4] x, bool c) => (float[4] y) <float one = {1.0}> {
  y = If (c) <then_branch = yes () => (a) {
      n = Size (x) m = Cast <to = 1> (n) m3 = Add (m, one) r = Div (one, m3)  a = Mul (x, r) },
    else_branch = no () => (b) { b = Neg (x) }>
}"""
_SCAN = """<ir_version: 8, opset_import: ["" : 18]> g (float[2] s, float[2,3] x) => (float[2] last, float[2,3] y) {
  last, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [1],
    scan_output_directions = [1], body = step (float[2] a, float[2] b) => (float[2] c, float[2] d) {
      c = Add (a, b)  d = Mul (c, b) }> (s, x)
}"""
_NO_TURN = """<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y, float[N,2] z) {
  n = Constant <value = int64 {0}> ()  go = Constant <value = bool {1}> ()
  y, z = Loop (n, go, x) <body = turn (int64 i, bool c, float[2] h) => (bool co, float[2] hn, float[2] k) {
    co = Identity (c)  hn = Neg (h)  k = Abs (h) }>
}"""
_COUNTED = _NO_TURN.replace("{0}", "{3}").replace(
    "co = Identity (c)", "one = Constant <value = int64 {1}> () co = Less (i, one)"
)


def test_erf_in_a_branch_is_not_rounded() -> None:
    """ONNX's own evaluator computes it in float32."""
    x = np.array([0.1, 0.7, -1.3, 2.0], np.float32)
    run = _run(_ERF, {"x": x, "c": np.array(True)})
    np.testing.assert_array_equal(run.values["y"], [math.erf(float(one)) for one in x])


def test_sizes_in_a_branch_keep_their_type() -> None:
    """1 / 5 in float32, as the file computes it."""
    x = np.array([0.1, 0.7, -1.3, 2.0], np.float32)
    run = _run(_SCALED, {"x": x, "c": np.array(True)})
    np.testing.assert_array_equal(run.values["y"], x.astype(np.float64) * np.float64(np.float32(1) / np.float32(5)))


@pytest.mark.parametrize("text", [_SCAN, _COUNTED])
def test_directions_axes_and_conditions(text: str) -> None:
    """A Scan backwards along the second axis; a Loop that its own condition ends."""
    draw = np.random.default_rng(2)
    feeds: Feeds = {
        value.name: draw.standard_normal((2, 3) if value.name == "x" and text is _SCAN else 2).astype(np.float32)
        for value in parser.parse_model(text).graph.input
    }
    run = _run(text, feeds)
    for found, expected in zip(_outputs(run, text), _in_double(text, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_without_a_turn() -> None:
    """What would be stacked has no known shape: the runtime computes the node."""
    run = _run(_NO_TURN, {"x": np.ones(2, np.float32)})
    assert "no runtime is given" in run.reason or "Loop" in run.reason
