"""A sink is one more key whose value is zero: read from a Concat or a Pad, and refused by name where it is another."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.convert.convert_model import convert_model
from tests.graph.lift.judged import judge_all, run

_TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
attention (float[B,4,L,8] q, float[B,KV,S,8] k, float[B,KV,S,8] v, bool[B,1,1,S] c, float[B,1,L,S] m,
  float[B,4,L,1] given) => (float[B,4,L,8] y)
<float[1,4,1,1] sink = {-0.5, 1.5, 0.25, 9.0}, float[1,4,1,2] two = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0},
 float scale = {0.3}, float low = {-3.4e38}, float half = {0.5},
 int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {-1}, int64[1] last = {3}, int64[1] heads = {2},
 int64[1] far = {9223372036854775807}, int64[8] pads = {0, 0, 0, 0, 0, 0, 0, 1},
 int64[8] pads_front = {0, 0, 0, 1, 0, 0, 0, 0}, int64[8] pads_two = {0, 0, 0, 1, 0, 0, 0, 1},
 int64[8] pads_key = {0, 0, 0, 0, 0, 0, 1, 0}, int64[4] four = {-1, 4, 7, 8}, int64[5] twice = {1, 1, 2, 1, 1}>
{
  KEYS
  flip = Transpose <perm = [0, 1, 3, 2]> (kk)
  s0 = MatMul (q, flip)
  s = Mul (s0, scale)
  STEPS
}
"""
_SIZES = {"B": 2, "L": 5, "S": 7}
_PLAIN = "kk = Identity (k)  vv = Identity (v)"
_EXPAND = "n = Shape <start = 0, end = 3> (s)  shape = Concat <axis = 0> (n, one)  e = Expand (sink, shape)"
_DROP = "w = Slice (p, zero, end, last, one)  y = MatMul (w, vv)"
_DROP_FIRST = "w = Slice (p, one, far, end)  y = MatMul (w, vv)"
_SOFTMAX = "p = Softmax <axis = -1> (x)"
Arrays = dict[str, NDArray[np.generic]]

_READ = {
    "learned": f"{_EXPAND} x = Concat <axis = -1> (s, e) {_SOFTMAX} {_DROP}",
    "one sink a sample and query": f"x = Concat <axis = 3> (s, given) {_SOFTMAX} {_DROP}",
    "first column": f"{_EXPAND} x = Concat <axis = -1> (e, s) {_SOFTMAX} {_DROP_FIRST}",
    "minus the row maximum": (
        f"{_EXPAND} x0 = Concat <axis = -1> (s, e)  t = ReduceMax <keepdims = 1> (x0, end)  x = Sub (x0, t) "
        f"{_SOFTMAX} {_DROP}"
    ),
    "zero by Pad": f"x = Pad (s, pads) {_SOFTMAX} {_DROP}",
    "zero by Pad in front": f"x = Pad (s, pads_front, half) {_SOFTMAX} {_DROP_FIRST}",
    "mask and sink": f"{_EXPAND} s1 = Add (s, m)  x = Concat <axis = -1> (s1, e) {_SOFTMAX} {_DROP}",
    "hidden keys and sink": f"{_EXPAND} s1 = Where (c, s, low)  x = Concat <axis = -1> (s1, e) {_SOFTMAX} {_DROP}",
    "after Dropout": (
        f"{_EXPAND} x = Concat <axis = -1> (s, e) {_SOFTMAX} p1 = Identity (p)  w0 = Slice (p1, zero, end, last, one) "
        "w = Dropout (w0)  y = MatMul (w, vv)"
    ),
}

_REFUSED = {
    "two columns": (
        f"x = Concat <axis = -1> (s, two) {_SOFTMAX} {_DROP}",
        "the scores are concatenated with more than one column",
    ),
    "another axis": (
        f"x = Concat <axis = 2> (s, s) {_SOFTMAX} {_DROP}",
        "the scores are concatenated along another axis than the keys",
    ),
    "padded twice": (
        f"x = Pad (s, pads_two) {_SOFTMAX} {_DROP}",
        "the scores are padded, but not by one column with a number",
    ),
    "mask after the sink": (
        f"{_EXPAND} x0 = Concat <axis = -1> (s, e)  x = Mul (x0, half) {_SOFTMAX} {_DROP}",
        "a Mul follows the sink of the softmax",
    ),
    "wrong column dropped": (
        f"{_EXPAND} x = Concat <axis = -1> (s, e) {_SOFTMAX} {_DROP_FIRST}",
        "there is a Slice between the softmax and the product with the values",
    ),
}


def _parsed(steps: str, keys: str = _PLAIN, heads: str = "4") -> ir.Model:
    text = _TEXT.replace("STEPS", steps).replace("KEYS", keys).replace("KV", heads)
    return ir.from_proto(onnx.parser.parse_model(text))


def _feeds(model: ir.Model) -> Arrays:
    rng = np.random.default_rng(0)
    feeds: Arrays = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        shape = [size if isinstance(size, int) else _SIZES[size.value or ""] for size in value.shape]
        drawn = rng.standard_normal(shape)
        feeds[value.name or ""] = drawn > -0.5 if value.dtype == ir.DataType.BOOL else drawn.astype(np.float32)
    feeds["c"][0] = False  # every key of the first sample is hidden: only the sink is seen
    return feeds


def _read_right(model: ir.Model) -> FoundAttention:
    """Find the one attention and judge it; the copy and every form must return the source's output."""
    findings = find_attentions(model)
    (found,) = findings.found
    assert found.reason == ""
    feeds = _feeds(model)
    (agreement,) = judge_all(findings, feeds)
    assert agreement.verdict.is_right
    expected = run(model, feeds, [])["y"].astype(np.float64)
    for form in (None, Form.DECOMPOSED, Form.ATTENTION, Form.BLOCKED, Form.ORT_MHA):
        written = findings.model
        if form is not None:
            made = convert_model(OnnxModel(ir=model, sites=()), form, again=True)
            assert dict(made.refused) == {}
            written = made.model.ir
        np.testing.assert_allclose(run(written, feeds, [])["y"], expected, rtol=2e-5, atol=2e-6)
    return found


@pytest.mark.parametrize("name", _READ)
def test_sink_is_read(name: str) -> None:
    """The attention agrees with the oracle, its forms with the source, and a warning names the column."""
    found = _read_right(_parsed(_READ[name]))
    assert any("the softmax has a sink, a column without a value (node " in warning for warning in found.warnings)


def test_grouped_heads() -> None:
    """Repeated heads are recognised with a sink too."""
    repeat = " ".join(
        f"{name}5 = Unsqueeze ({name}, heads)  {name}6 = Tile ({name}5, twice)  {name}{name} = Reshape ({name}6, four)"
        for name in ("k", "v")
    )
    model = _parsed(_READ["learned"], repeat, heads="2")
    for value in model.graph.inputs:  # the targets of Reshape have the length
        if value.shape is not None:
            value.shape = ir.Shape([7 if size == "S" else size for size in value.shape])
    found = _read_right(model)
    assert found.attention is not None
    assert found.attention.spec.kv_num_heads == 2


@pytest.mark.parametrize("name", _REFUSED)
def test_other_columns_are_refused(name: str) -> None:
    """The reason names what was found and where."""
    steps, reason = _REFUSED[name]
    (found,) = find_attentions(_parsed(steps)).found
    assert found.attention is None
    assert found.reason.startswith(f"{reason}: node ")


def test_sink_that_keeps_its_value() -> None:
    """Weights with the column are not read: it has a value here."""
    steps = f"{_EXPAND} x = Concat <axis = -1> (s, e) {_SOFTMAX} v1 = Pad (vv, pads_key)  y = MatMul (p, v1)"
    (found,) = find_attentions(_parsed(steps)).found
    assert found.reason.startswith("the sink of the softmax is not dropped from the weights: node ")
