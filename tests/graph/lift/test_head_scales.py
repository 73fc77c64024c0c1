"""A constant scale of one value a head multiplies the query of the copy; any other scale is refused with its shape."""

from collections.abc import Callable

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.found import FoundAttentions
from tests.graph.lift.judged import judge_all, run

Array = NDArray[np.float32]

_TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
attention (TYPE[B,4,L,8] q, TYPE[B,4,S,8] k, TYPE[B,4,S,8] v, TYPE[B,1,L,S] m, TYPE[4,1,1] given) => (TYPE[B,4,L,8] y)
<float[4,1,1] t = {2.0, 10.0, 60.0, 0.5}, float[1,4,1,1] four = {0.5, 0.25, 2.0, 0.125},
 float[4,1,1] logs = {0.5, 1.0, 2.0, 9.0}, float low = {-5.0}, float cap = {3.0},
 float[4,1,1] odd = {0.0, -1.5, 3.0, 1.0},
 float[4,1,1] same = {0.5, 0.5, 0.5, 0.5}, float half = {0.5}, float[5,1] rows = {1.0, 2.0, 3.0, 4.0, 5.0},
 float[1,4,1,1,1] five = {1.0, 2.0, 3.0, 4.0}, float[7] keys = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0},
 int64[3] flat_q = {-1, 5, 8}, int64[3] flat_k = {-1, 7, 8}, int64[4] split = {-1, 4, 5, 7}>
{
  STEPS
}
"""
_SCORES = "kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, kt)"
_TAIL = "p = Softmax (x)  y = MatMul (p, v)"
_SIZES = {"B": 2, "L": 5, "S": 7}


def parsed(steps: str, dtype: str = "float", *, lengths: bool = False, batch: int | None = None) -> ir.Model:
    text = _TEXT.replace("STEPS", steps).replace("TYPE", dtype)
    if lengths:
        text = text.replace(",L,", ",5,").replace(",S,", ",7,").replace("L,S]", "5,7]")
    if batch is not None:
        text = text.replace("[B,", f"[{batch},")
    model = ir.from_proto(onnx.parser.parse_model(text))
    kind = model.graph.inputs[0].dtype
    assert kind is not None
    for name, value in model.graph.initializers.items():  # the parser has no float16 constants
        if value.dtype is ir.DataType.FLOAT and value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(kind.numpy()), name=name)
            value.dtype = kind
    return model


def feeds_of(model: ir.Model) -> dict[str, NDArray[np.generic]]:
    rng = np.random.default_rng(0)
    feeds: dict[str, NDArray[np.generic]] = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        assert value.dtype is not None
        shape = [size if isinstance(size, int) else _SIZES[size.value or ""] for size in value.shape]
        feeds[value.name or ""] = rng.standard_normal(shape).astype(value.dtype.numpy())
    return feeds


def read_right(model: ir.Model) -> FoundAttentions:
    """The one attention agrees with the oracle at its own values, and the copy computes what the source computes."""
    findings = find_attentions(model)
    assert [found.reason for found in findings.found] == [""]
    feeds = feeds_of(model)
    (agreement,) = judge_all(findings, feeds)
    assert agreement.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL), agreement.diagnosis
    np.testing.assert_array_equal(run(findings.model, feeds, ["y"])["y"], run(model, feeds, ["y"])["y"])
    return findings


def scale_of(findings: FoundAttentions) -> object:
    (found,) = findings.found
    assert found.attention is not None
    return found.attention.spec.scale


READ = {
    "multiplied": (f"{_SCORES}  x = Mul (s, t)  {_TAIL}", "none"),
    "first operand": (f"{_SCORES}  x = Mul (t, s)  {_TAIL}", "none"),
    "divided, with a batch axis": (f"{_SCORES}  x = Div (s, four)  {_TAIL}", "none"),
    "capped and learned as a logarithm": (
        f"{_SCORES}  c = Clip (logs, , cap)  e = Exp (c)  x = Mul (s, e)  {_TAIL}",
        "none",
    ),
    "limited by Min and Max": (
        f"{_SCORES}  a = Min (logs, cap)  b = Max (a, low)  e = Exp (b)  x = Mul (s, e)  {_TAIL}",
        "none",
    ),
    "zero and negative": (f"{_SCORES}  x = Mul (s, odd)  {_TAIL}", "none"),
    "with a scale and a mask": (f"{_SCORES}  a = Mul (s, t)  b = Mul (a, half)  x = Add (b, m)  {_TAIL}", 0.5),
    "twice": (f"{_SCORES}  a = Mul (s, t)  x = Div (a, four)  {_TAIL}", "none"),
    "before a softcap": (f"{_SCORES}  a = Div (s, four)  b = Tanh (a)  x = Mul (b, cap)  {_TAIL}", 3.0),
    "the same for all heads": (f"{_SCORES}  x = Mul (s, same)  {_TAIL}", 0.5),
    "on the query": (f"n = Mul (q, t)  kt = Transpose <perm = [0, 1, 3, 2]> (k)  x = MatMul (n, kt)  {_TAIL}", "none"),
    "on the key": (f"n = Div (k, four)  kt = Transpose <perm = [0, 1, 3, 2]> (n)  x = MatMul (q, kt)  {_TAIL}", "none"),
    "heads last": (
        f"""a = Transpose <perm = [0, 2, 1, 3]> (q)  b = Transpose <perm = [0, 2, 1, 3]> (k)
        s = Einsum <equation = "bihd,bjhd->bhij"> (a, b)  x = Mul (s, t)  {_TAIL}""",
        "none",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_scale_of_one_value_a_head_is_read(name: str) -> None:
    """On the scores it multiplies the query of the copy; on query or key it is part of that operand."""
    steps, scale = READ[name]
    assert scale_of(read_right(parsed(steps))) == scale


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_other_element_types_are_read(dtype: str) -> None:
    """The added product has the element type of the query."""
    read_right(parsed(READ["multiplied"][0], dtype))


def test_scores_computed_wider_are_read() -> None:
    """The temperature has the element type of the scores, float32, and query and key are float16."""
    steps = """a = Cast <to = 1> (q)  b = Cast <to = 1> (k)  kt = Transpose <perm = [0, 1, 3, 2]> (b)
        s = MatMul (a, kt)
        w = Cast <to = 1> (t)  x = Mul (s, w)  p0 = Softmax (x)  p = Cast <to = 10> (p0)  y = MatMul (p, v)"""
    findings = read_right(parsed(steps, "float16"))
    (found,) = findings.found
    assert found.attention is not None
    assert found.attention.query.dtype is ir.DataType.FLOAT16


def test_scores_reshaped_to_heads_are_read() -> None:
    """The product has batch and heads in one axis; the temperature follows the Reshape that splits them."""
    steps = f"""a = Reshape (q, flat_q)  b = Reshape (k, flat_k)  kt = Transpose <perm = [0, 2, 1]> (b)
        f = MatMul (a, kt)  s = Reshape (f, split)  x = Mul (s, t)  {_TAIL}"""
    read_right(parsed(steps, lengths=True))


def test_heads_in_the_first_of_three_axes_are_read() -> None:
    """The temperature is applied where the scores have three axes, and a Reshape of them adds the batch axis later."""
    steps = f"""a = Reshape (one, flat_q)  b = Reshape (k1, flat_k)  kt = Transpose <perm = [0, 2, 1]> (b)
        f = MatMul (a, kt)  w = Mul (f, t)  x = Reshape (w, split)  {_TAIL}"""
    cut = "z = Constant <value_ints = [0]> ()  o = Constant <value_ints = [1]> ()  "
    cut += "one = Slice (q, z, o)  k1 = Slice (k, z, o)  "
    read_right(parsed(cut + steps, lengths=True, batch=1))


FAULTS: dict[str, Callable[[Array], Array]] = {
    "another head's": lambda right: np.roll(right, 1, axis=0),
    "the mean for all heads": lambda right: np.full_like(right, right.mean()),
    "without the cap": lambda right: right * np.array([1, 1, 1, 4], np.float32).reshape(4, 1, 1),
    "forgotten": np.ones_like,
}


@pytest.mark.parametrize("name", FAULTS)
def test_another_temperature_is_caught(name: str) -> None:
    """A copy whose query is multiplied by other temperatures disagrees with the oracle."""
    model = parsed(READ["multiplied"][0])
    findings = find_attentions(model)
    (found,) = findings.found
    assert found.attention is not None
    product = found.attention.query.producer()
    right = model.graph.initializers["t"].const_value
    assert product is not None
    assert right is not None
    wrong = ir.Value(name="wrong", const_value=ir.tensor(FAULTS[name](right.numpy()), name="wrong"))
    findings.model.graph.initializers.add(wrong)
    product.replace_input_with(1, wrong)
    (agreement,) = judge_all(findings, feeds_of(model))
    assert agreement.verdict is Verdict.WRONG


REFUSED = {
    "an input": ("x = Mul (s, given)", "the scale is not constant: node Mul/x"),
    "of keys": ("x = Mul (s, keys)", "the scale has shape (7,), which is not one value a head: node Mul/x"),
    "of queries": ("x = Mul (s, rows)", "the scale has shape (5, 1), which is not one value a head: node Mul/x"),
    "of another rank": (
        "x5 = Mul (s, five)  x = Squeeze (x5, zero)",
        "the scale has shape (1, 4, 1, 1, 1), which is not one value a head: node Mul/x5",
    ),
    "divided by zero": ("x = Div (s, odd)", "the scale of a head is not finite: node Div/x"),
    "after a mask": (
        "a = Add (s, m)  x = Mul (a, t)",
        "scores masked by 'm' are multiplied by one value a head: node Mul/x (apply the mask after it)",
    ),
    "after a softcap": (
        "a = Tanh (s)  x = Mul (a, t)",
        "softcapped scores are multiplied by one value a head: node Mul/x",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_says_what_the_scale_is(name: str) -> None:
    """Not constant, not one value a head, not finite, or at a place where the query cannot carry it."""
    steps, reason = REFUSED[name]
    zero = "zero = Constant <value_ints = [0]> ()  "
    (found,) = find_attentions(parsed(f"{zero}{_SCORES}  {steps}  {_TAIL}", lengths=True)).found
    assert found.reason == reason
