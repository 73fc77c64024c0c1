"""Masks with their own dynamic axes: a last axis of size 1 broadcasts over all keys."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.found import NAN_ROWS
from tests.graph.lift.judged import judge_all, run

_MODEL = """
<ir_version: 9, opset_import: ["" : 17]>
attention (float[B,2,L,4] q, float[B,2,S,4] k, float[B,2,S,4] v, MASK) => (float[B,2,L,4] y)
<float lowest = {-1e9}, float infinite = {-1.0}, float zero = {0.0}>
{
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  s = MatMul (q, kt)
  STEPS
  p = Softmax (x)
  WEIGHTS
  y = MatMul (w, v)
}
"""


def parsed(mask: str, steps: str, weights: str = "w = Identity (p)") -> ir.Model:
    text = _MODEL.replace("MASK", mask).replace("STEPS", steps).replace("WEIGHTS", weights)
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.initializers["infinite"].const_value = ir.tensor(np.float32(-np.inf), name="infinite")
    return model


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("form", ["float[B,1,L,T] m", "bool[B,1,L,T] m", "float[T] m", "float[L,T] m"])
def test_one_column_for_all_keys(form: str, width: int) -> None:
    """A single column applies to all keys of its query, as the source broadcasts it."""
    is_bool = form.startswith("bool")
    model = parsed(form, "x = Where (m, s, lowest)" if is_bool else "x = Add (s, m)")
    findings = find_attentions(model)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 2, 5, 4)).astype(np.float32) for name in "qkv"}
    sizes = {"B": 2, "L": 5, "T": width}
    axes = [sizes.get(axis) or int(axis) for axis in form[form.index("[") + 1 : form.index("]")].split(",")]
    mask = rng.random(axes) < 0.5 if is_bool else rng.standard_normal(axes)
    feeds["m"] = mask if is_bool else mask.astype(np.float32)
    (found,) = findings.found
    assert found.attention is not None
    assert found.attention.attn_mask is not None
    name = found.attention.attn_mask.name or ""
    assert run(findings.model, feeds, [name])[name].shape[-1] == 5
    (agreement,) = judge_all(findings, feeds)
    assert agreement.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL), agreement.diagnosis


def test_a_mask_as_wide_as_the_keys_is_taken_as_it_is() -> None:
    """No node is added for it."""
    findings = find_attentions(parsed("float[B,1,L,S] m", "x = Add (s, m)"))
    (found,) = findings.found
    assert found.attention is not None
    assert found.attention.attn_mask is findings.model.graph.inputs[3]


def test_rows_that_give_nan_are_told() -> None:
    """The NaN warning appears for a mask with -inf without a guard, and not if it is causal, finite or guarded."""
    causal = """
        o = Constant <value_int = 0> ()  e = Constant <value_int = 1> ()  sh = Shape <start = 2, end = 3> (k)
        ql = Shape <start = 2, end = 3> (q)  n = Squeeze (sh)  r = Range (o, n, e)  rows = Squeeze (ql)
        rr = Range (o, rows, e)  z = Constant <value_ints = [0]> ()  f = Constant <value_ints = [1]> ()
        j = Unsqueeze (r, z)  i = Unsqueeze (rr, f)  c = LessOrEqual (j, i)  x = Where (c, s, infinite)"""
    guard = "nan = IsNaN (p)  w = Where (nan, zero, p)"
    sources = [
        parsed("bool[B,1,L,S] m", "x = Where (m, s, infinite)"),
        parsed("float[B,1,L,S] m", "x = Add (s, m)"),
        parsed("bool[B,1,L,S] m", "x = Where (m, s, lowest)"),
        parsed("bool[B,1,L,S] m", "x = Where (m, s, infinite)", guard),
        parsed("bool[B,1,L,S] m", causal),
    ]
    told = [found.warnings for source in sources for found in find_attentions(source).found]
    assert told == [(NAN_ROWS,), (NAN_ROWS,), (), (), ()]
    assert NAN_ROWS == "A query that sees no key is NaN in the source and 0 in the result."
