"""Pairs of QuantizeLinear and DequantizeLinear between the products of an attention are read, or refused by node."""

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.score_quantisers import Quantiser, ScoreQuantisers
from sdpa_onnx.core.attention.spec import MaskKind, ScaleRule
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lower.lower import refusal

_TEXT = """
<ir_version: 9, opset_import: ["" : 19, "com.microsoft" : 1]>
attention (float[B,4,L,8] q, float[B,4,S,8] k, float[B,4,S,8] v, float t, float[B,1,L,S] m, bool[B,1,L,S] c)
  => (float[B,4,L,8] y)
<float fine = {0.25}, float coarse = {0.5}, float rule = {0.35355338}, uint8 zero = {100}, int8 below = {-3},
 int16 middle = {0}, float low = {-10000.0}, float near = {-1500.0}, float wide = {100.0}, uint8 one = {1},
 int8 held = {100}, float step = {0.0035355338}, int8 nothing = {0}, int32 whole = {1}, float[2] two = {0.25, 0.5}>
{
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  s = MatMul (q, kt)
  STEPS
}
"""
_TAIL = "p = Softmax (x)  y = MatMul (p, v)"


def only(steps: str) -> FoundAttention:
    (found,) = find_attentions(ir.from_proto(onnx.parser.parse_model(_TEXT.replace("STEPS", steps)))).found
    return found


def pair(source: str, target: str, scale: str = "fine", zero: str = ", zero") -> str:
    return (
        f"{target}i = QuantizeLinear ({source}, {scale}{zero})  {target} = DequantizeLinear ({target}i, {scale}{zero})"
    )


_SCORES = f"{pair('s', 'a')}  b = Mul (a, rule)  {pair('b', 'd')}  e = Add (d, m)  {pair('e', 'x')}"
UINT8 = Quantiser(scale=0.25, zero_point=100, lowest=0, highest=255)
READ = {
    "product": (f"{pair('s', 'x')}  {_TAIL}", ScoreQuantisers(product=(UINT8,))),
    "scaled": (f"a = Mul (s, rule)  {pair('a', 'x')}  {_TAIL}", ScoreQuantisers(scaled=(UINT8,))),
    "masked": (f"a = Add (s, m)  {pair('a', 'x')}  {_TAIL}", ScoreQuantisers(masked=(UINT8,))),
    "weights": (f"p = Softmax (s)  {pair('p', 'w')}  y = MatMul (w, v)", ScoreQuantisers(weights=(UINT8,))),
    "all": (
        f"{_SCORES}  p = Softmax (x)  {pair('p', 'w')}  y = MatMul (w, v)",
        ScoreQuantisers(product=(UINT8,), scaled=(UINT8,), masked=(UINT8,), weights=(UINT8,)),
    ),
    "twice": (f"{pair('s', 'a')}  {pair('a', 'x', 'coarse')}  {_TAIL}", None),
    "int8": (
        f"{pair('s', 'x', zero=', below')}  {_TAIL}",
        ScoreQuantisers(product=(Quantiser(scale=0.25, zero_point=-3, lowest=-128, highest=127),)),
    ),
    "no zero point": (
        f"{pair('s', 'x', zero='')}  {_TAIL}",
        ScoreQuantisers(product=(Quantiser(scale=0.25, zero_point=0, lowest=0, highest=255),)),
    ),
    "saturated fill": (
        f"a = Where (c, s, low)  {pair('a', 'x')}  {_TAIL}",
        ScoreQuantisers(masked=(UINT8,)),
    ),
    "scaled query": (
        "z = Mul (q, rule)  r = MatMul (z, kt)  " + f"{pair('r', 'x')}  {_TAIL}",
        ScoreQuantisers(scaled=(UINT8,)),
    ),
    "quantised factor": (
        f"f = DequantizeLinear (held, step, nothing)  a = Mul (s, f)  {pair('a', 'x')}  {_TAIL}",
        ScoreQuantisers(scaled=(UINT8,)),
    ),
    "int16 of onnxruntime": (
        "i = com.microsoft.QuantizeLinear (s, fine, middle)  x = com.microsoft.DequantizeLinear (i, fine, middle)  "
        + _TAIL,
        ScoreQuantisers(product=(Quantiser(scale=0.25, zero_point=0, lowest=-32768, highest=32767),)),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_pairs_are_read_by_stage(name: str) -> None:
    """Every pair is found at the stage whose numbers it rounds, with its parameters."""
    steps, expected = READ[name]
    found = only(steps)
    assert found.reason == ""
    assert found.attention is not None
    if expected is None:
        assert [one.scale for one in found.attention.quantisers.product] == [0.25, 0.5]
    else:
        assert found.attention.quantisers == expected


def test_factor_stays_the_rule() -> None:
    """The scale is read through a dequantised constant."""
    found = only(READ["quantised factor"][0]).attention
    assert found is not None
    assert found.spec.scale == ScaleRule.INVERSE_SQRT


def test_masked_pair_keeps_the_mask() -> None:
    """Boolean hiding stays a mask: behind a pair a hidden key has a weight, so nothing may be skipped."""
    found = only(READ["saturated fill"][0])
    assert found.attention is not None
    assert found.attention.spec.mask is MaskKind.FLOAT
    assert found.warnings == ()


_THAN = "than they are dequantized: node"
_OUT = "y = MatMul (w, v)"
REFUSED = {
    "another scale": (
        f"i = QuantizeLinear (s, fine, zero)  x = DequantizeLinear (i, coarse, zero)  {_TAIL}",
        f"the scores are quantized with another scale (0.25, not 0.5) {_THAN} DequantizeLinear/x",
    ),
    "another zero point": (
        f"i = QuantizeLinear (s, fine, zero)  x = DequantizeLinear (i, fine, one)  {_TAIL}",
        f"the scores are quantized with another zero point (100, not 1) {_THAN} DequantizeLinear/x",
    ),
    "another scale of weights": (
        f"p = Softmax (s)  i = QuantizeLinear (p, fine, zero)  w = DequantizeLinear (i, coarse, zero)  {_OUT}",
        f"the weights are quantized with another scale (0.25, not 0.5) {_THAN} DequantizeLinear/w",
    ),
    "scale that is an input": (
        f"i = QuantizeLinear (s, t, zero)  x = DequantizeLinear (i, t, zero)  {_TAIL}",
        "the scores are quantized, and its scale is not constant: QuantizeLinear at node QuantizeLinear/i",
    ),
    "several scales": (
        f"i = QuantizeLinear <axis = 1> (s, two)  x = DequantizeLinear <axis = 1> (i, two)  {_TAIL}",
        "the scores are quantized, and it has 2 scales: QuantizeLinear at node QuantizeLinear/i",
    ),
    "scaled after": (
        f"a = Mul (s, rule)  {pair('a', 'b')}  x = Mul (b, coarse)  {_TAIL}",
        "scores are scaled after they are quantized: node Mul/x",
    ),
    "softcap": (
        f"{pair('s', 'b')}  x = Tanh (b)  {_TAIL}",
        "the scores are quantized, and Tanh at node Tanh/x is not read together with that",
    ),
    "mask after": (
        f"a = Add (s, m)  {pair('a', 'b')}  x = Add (b, m)  {_TAIL}",
        "masked scores are quantized before another mask, 'm': node Add/x (combine the masks into one)",
    ),
    "fill inside the range": (
        f"a = Where (c, s, near)  {pair('a', 'x', 'wide')}  {_TAIL}",
        "the scores are quantized, and the fill -1500 is not their least: node Where/a",
    ),
    "between two scales": (
        "z = Mul (q, rule)  r = MatMul (z, kt)  " + f"{pair('r', 'b')}  x = Mul (b, coarse)  {_TAIL}",
        "the scores are quantized between two scales: node MatMul/r",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_node(name: str) -> None:
    """What the stages cannot hold is refused with the node and the reason."""
    steps, reason = REFUSED[name]
    found = only(steps)
    assert (found.attention, found.reason) == (None, reason)


@pytest.mark.parametrize("form", [form for form in Form if form is not Form.DECOMPOSED])
def test_other_forms_refuse(form: Form) -> None:
    """Only the decomposed form has edges that a pair can round; the others name it."""
    found = only(READ["all"][0]).attention
    assert found is not None
    assert refusal(found, Form.DECOMPOSED, opset=23) is None
    assert refusal(found, form, opset=23) == (
        "The file has its scores and weights quantized (QuantizeLinear between its products), which only the form "
        "'decomposed' keeps: use --form decomposed."
    )
