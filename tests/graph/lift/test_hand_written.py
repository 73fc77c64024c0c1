"""Decomposed attention in forms that torch's exporters do not write: each is read and agrees with the oracle."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.found import FoundAttention, FoundAttentions
from tests.graph.lift.judged import judge_all, run

_TEXT = """
<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
attention (float[OPERAND_Q] q, float[OPERAND_K] k, float[OPERAND_K] v, bool[B,1,1,S] c, float[B,1,L,S] m)
  => (float[OPERAND_Q] y)
<float low = {-1e9}, float lowest = {-3.4e38}, float zero = {0.0}, float half = {0.5}, float inf = {-1.0},
 int64[4] back = {-1, 4, 5, 8}, int64[3] flat = {-1, 5, 8}>
{
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  s = MatMul (q, kt)
  STEPS
}
"""
_SIZES = {"B": 2, "L": 5, "S": 7}
Arrays = dict[str, NDArray[np.generic]]


def parsed(steps: str, q: str = "B,4,L,8", k: str = "B,4,S,8") -> ir.Model:
    text = _TEXT.replace("OPERAND_Q", q).replace("OPERAND_K", k).replace("STEPS", steps)
    if q.count(",") != 3:  # without a head axis there is no product of rank 4
        start, end = text.index("  kt ="), text.index("  s = MatMul (q, kt)\n") + len("  s = MatMul (q, kt)\n")
        text = text[:start] + text[end:]
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.initializers["inf"].const_value = ir.tensor(np.float32(-np.inf), name="inf")
    return model


def feeds_of(model: ir.Model, *, hidden_row: bool = False) -> Arrays:
    rng = np.random.default_rng(0)
    feeds: Arrays = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        shape = [size if isinstance(size, int) else _SIZES[size.value or ""] for size in value.shape]
        drawn = rng.standard_normal(shape)
        feeds[value.name or ""] = drawn > -0.5 if value.dtype == ir.DataType.BOOL else drawn.astype(np.float32)
    feeds["c"][..., 0] = True
    if hidden_row:
        feeds["c"][0] = False
    return feeds


def read_right(model: ir.Model, *, hidden_row: bool = False) -> FoundAttention:
    """Find the one attention and verify it; the copy must return the source's output."""
    findings: FoundAttentions = find_attentions(model)
    (found,) = findings.found
    assert found.reason == ""
    feeds = feeds_of(model, hidden_row=hidden_row)
    (agreement,) = judge_all(findings, feeds)
    assert agreement.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL), agreement.diagnosis
    np.testing.assert_allclose(run(findings.model, feeds, ["y"])["y"], run(model, feeds, ["y"])["y"], rtol=1e-6)
    return found


READ = {
    "subtracted mask": "x = Sub (s, m)  p = Softmax (x)  y = MatMul (p, v)",
    "mask first": "x = Add (m, s)  p = Softmax (x)  y = MatMul (p, v)",
    "hides where true": "x = Where (c, inf, s)  p = Softmax (x)  y = MatMul (p, v)",
    "not hidden": "n = Not (c)  x = Where (n, inf, s)  p = Softmax (x)  y = MatMul (p, v)",
    "masked, then added": "a = Where (c, s, inf)  x = Add (a, m)  p = Softmax (x)  y = MatMul (p, v)",
    "scaled after the mask": "a = Add (s, m)  x = Mul (a, half)  p = Softmax (x)  y = MatMul (p, v)",
    "masked in two ways": """a = Where (c, s, inf)  e = Where (c, zero, inf)  x = Add (a, e)  p = Softmax (x)
        y = MatMul (p, v)""",
    "limited from below": "a = Add (s, m)  x = Max (a, lowest)  p = Softmax (x)  y = MatMul (p, v)",
    "clipped from below": "x = Clip (s, lowest)  p = Softmax (x)  y = MatMul (p, v)",
    "fused product": """f = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (q, k)  p = Softmax (f)
        y = MatMul (p, v)""",
    "einsum of ellipses": """f = Einsum <equation = "...id,...jd->...ij"> (q, k)  p = Softmax (f)
        y = Einsum <equation = "...ij,...jd->...id"> (p, v)""",
    "einsum, key first": """f = Einsum <equation = "bhjd,bhid->bhij"> (k, q)  p = Softmax (f)
        y = Einsum <equation = "bhjd,bhij->bhid"> (v, p)""",
}


@pytest.mark.parametrize("name", READ)
def test_a_way_of_writing_is_read_right(name: str) -> None:
    """Masks as either operand, limits, fused products and Einsum equations."""
    read_right(parsed(READ[name]))


@pytest.mark.parametrize("fill", ["low", "lowest"])
def test_a_finite_fill_gives_the_mean_where_all_is_hidden(fill: str) -> None:
    """A fully masked row is the mean of its values in the source, and stays so after reading."""
    found = read_right(parsed(f"x = Where (c, s, {fill})  p = Softmax (x)  y = MatMul (p, v)"), hidden_row=True)
    assert found.attention is not None
    assert found.attention.spec.mask == "float"


_ROW_GUARD = """h = Equal (x, inf)  i = Cast <to = 6> (h)  r = ReduceMin <axes = [-1]> (i)  b = Cast <to = 9> (r)
    p = Softmax (x)  g = Where (b, zero, p)  y = MatMul (g, v)"""


@pytest.mark.parametrize(
    "guard",
    [
        _ROW_GUARD,
        "p = Softmax (x)  n = IsNaN (p)  g = Where (n, zero, p)  y = MatMul (g, v)",
    ],
    ids=["rows", "nan"],
)
def test_a_guard_against_hidden_rows_is_seen_through(guard: str) -> None:
    """A guard that sets fully masked rows to 0 matches the operator."""
    found = read_right(parsed(f"x = Where (c, s, inf)  {guard}"), hidden_row=True)
    assert found.attention is not None
    assert found.attention.spec.mask == "bool"


def test_a_lower_limit_is_reported() -> None:
    """A fully masked row is a mean after such a limit."""
    found = read_right(parsed(READ["clipped from below"]))
    assert found.warnings == (
        (
            "scores are raised to -3.4e+38 at node Clip/x: "
            "a query without visible keys is a mean in the source and 0 in the result"
        ),
    )


def test_one_head_without_batch_is_read() -> None:
    """Products of rank 2 are one head of one sample; the output keeps its rank."""
    steps = (
        "kt = Transpose <perm = [1, 0]> (k)  s = MatMul (q, kt)  x = Mul (s, half)  p = Softmax (x)  y = MatMul (p, v)"
    )
    found = read_right(parsed(steps, "L,8", "S,8"))
    assert found.attention is not None
    assert (found.attention.spec.layout, found.attention.spec.q_num_heads) == ("bsh", 1)


def test_a_gemm_of_query_and_key_is_read() -> None:
    """Gemm multiplies by the transposed key and a constant."""
    steps = "s = Gemm <transB = 1, alpha = 0.5> (q, k)  p = Softmax (s)  y = MatMul (p, v)"
    found = read_right(parsed(steps, "L,8", "S,8"))
    assert found.attention is not None
    assert found.attention.spec.scale == 0.5


def test_heads_of_a_flattened_query_are_found() -> None:
    """Rank-3 products whose operands were reshaped from rank 4 are read with their heads."""
    steps = """a = Reshape (q, flat)  b = Reshape (k, flat)  w = Reshape (v, flat)
        bt = Transpose <perm = [0, 2, 1]> (b)  f = MatMul (a, bt)  p = Softmax (f)  o = MatMul (p, w)
        y = Reshape (o, back)"""
    model = parsed(steps, "B,4,5,8", "B,4,5,8")
    found = read_right(model)
    assert found.attention is not None
    assert (found.attention.spec.layout, found.attention.spec.q_num_heads) == ("bnsh", 4)
    assert (found.attention.query.name, found.attention.key.name, found.attention.value.name) == ("q", "k", "v")
