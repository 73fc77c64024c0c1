"""Each attention is judged in its own element type, whatever the type of the model's inputs and of other attentions."""

import onnx.parser
import pytest

from sdpa_onnx.core.records.records import Subject
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.isolate.isolated_runtime import guarded_runtime
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

_HEAD = """
<ir_version: 9, opset_import: ["" : 18]>
mixed (float[B,2,L,8] x) => (float[B,2,L,8] y)
<float scale = {0.35}>
{
"""
_NARROW = """
  h = Cast <to = 10> (x)
  ht = Transpose <perm = [0, 1, 3, 2]> (h)
  s = MatMul (h, ht)
  wide = Cast <to = 1> (s)
  scaled = Mul (wide, scale)
  p = Softmax <axis = -1> (scaled)
  ph = Cast <to = 10> (p)
  o = MatMul (ph, h)
"""
_WIDE = """
  gt = Transpose <perm = [0, 1, 3, 2]> (g)
  t = MatMul (g, gt)
  tscaled = Mul (t, scale)
  tp = Softmax <axis = -1> (tscaled)
  y = MatMul (tp, g)
"""
# float16 inside, as the converters write it with `keep_io_types`; the softmax in float32, as with a list of operators.
_ONLY_NARROW = f"{_HEAD}{_NARROW}  y = Cast <to = 1> (o)\n}}"
_NARROW_FIRST = f"{_HEAD}{_NARROW}  g = Cast <to = 1> (o)\n{_WIDE}}}"
_SECOND = _NARROW.replace("(x)", "(z)")
_WIDE_FIRST = f"{_HEAD}  g = Identity (x)\n{_WIDE.replace('y =', 'z =')}{_SECOND}  y = Cast <to = 1> (o)\n}}"


def _model(text: str) -> OnnxModel:
    return with_lifted_sites(load_model(onnx.parser.parse_model(text))).model


def _right(model: OnnxModel, runtime: Runtime) -> list[bool]:
    check = CheckOptions(sizes={"B": 2, "L": 9}, spreads=(1.0,))
    found = check_model(model, runtime, check, target="mixed", expectations=ExpectationCache())
    return [
        record.verdict is not None and record.verdict.is_right
        for record in found
        if record.subject is Subject.ATTENTION
    ]


@pytest.mark.parametrize("text", [_ONLY_NARROW, _NARROW_FIRST, _WIDE_FIRST])
def test_own_type(text: str) -> None:
    """float16 attentions are right in float16, float32 ones in float32."""
    model = _model(text)
    assert _right(model, get_runtime("ort-cpu")) == [True] * len(model.sites)


def test_own_type_in_a_process_of_its_own() -> None:
    """A worker process knows the attentions of a file that we did not export: it once called float16 wrong."""
    with guarded_runtime("ort-cpu") as runtime:
        assert _right(_model(_ONLY_NARROW), runtime) == [True]


def test_float32_is_not_judged_in_float16() -> None:
    """The other attention's narrower type does not widen the bound: an error of float16 is wrong in float32."""
    narrow = "y32 = MatMul (tp, g)  y16 = Cast <to = 10> (y32)  y = Cast <to = 1> (y16)"
    text = _NARROW_FIRST.replace("y = MatMul (tp, g)", f"tq = Cast <to = 10> (tp)  tr = Cast <to = 1> (tq)  {narrow}")
    model = _model(text.replace("(tp, g)", "(tr, g)"))
    assert _right(model, get_runtime("ort-cpu")) == [True, False]
