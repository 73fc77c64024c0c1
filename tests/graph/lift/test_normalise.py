"""Normalisation after any reader: causality, grouped heads, scale rules."""

import onnx.parser
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.find import find_attentions

_Q = "float[B,4,L,8] q"
_KV = "float[B,4,L,8] k, float[B,4,L,8] v"


def attention_of(
    steps: str, inputs: str = f"{_Q}, {_KV}, bool[B,1,1,L] c, bool[B,1,L,1] r", more: str = ""
) -> GraphAttention:
    text = f"""<ir_version: 11, opset_import: ["" : 23]> g ({inputs}) => (float[B,4,L,8] y{more})
    <bool yes = {{1}}, int64[5] wide = {{1, 1, 2, 1, 1}}, int64[1] two = {{2}}, int64[4] heads = {{0, 4, -1, 8}}>
    {{ {steps} }}"""
    (found,) = find_attentions(ir.from_proto(onnx.parser.parse_model(text))).found
    assert found.attention is not None, found.reason
    return found.attention


def said(spec: AttentionSpec) -> tuple[bool, str]:
    return spec.is_causal, spec.mask.value


_TRIANGLE = """s = Shape <start = 2, end = 3> (q)  t = Concat <axis = 0> (s, s)  e = Expand (yes, t)
    i = Cast <to = 6> (e)  l = Trilu <upper = 0> (i)  m = Cast <to = 9> (l)"""


def test_a_causal_mask_becomes_causality() -> None:
    """A triangular mask of the query's length is replaced by is_causal."""
    attention = attention_of(f"{_TRIANGLE}  y = Attention (q, k, v, m)")
    assert (said(attention.spec), attention.attn_mask) == ((True, "none"), None)


def test_the_rest_of_a_causal_mask_stays() -> None:
    """Of padding And a triangle, only the padding is left as a mask."""
    attention = attention_of(f"{_TRIANGLE}  a = And (m, c)  y = Attention (q, k, v, a)")
    assert attention.attn_mask is not None
    assert (said(attention.spec), attention.attn_mask.name) == ((True, "bool"), "c")


def test_a_column_for_all_keys_is_not_left_alone() -> None:
    """Used alone, a condition of one column would hide the other keys, so the whole mask is kept."""
    attention = attention_of(f"{_TRIANGLE}  a = And (m, r)  y = Attention (q, k, v, a)")
    assert attention.attn_mask is not None
    assert (said(attention.spec), attention.attn_mask.name) == ((True, "bool"), "a")


def test_conditions_that_are_left_are_joined_again() -> None:
    """Two conditions combined with a triangle become a new mask before the attention."""
    steps = f"{_TRIANGLE}  a = And (m, c)  d = Not (c)  b = And (a, d)  y = Attention (q, k, v, b)"
    attention = attention_of(steps)
    assert attention.attn_mask is not None
    node = attention.attn_mask.producer()
    assert node is not None
    assert (said(attention.spec), [value.name for value in node.inputs if value]) == ((True, "bool"), ["c", "d"])


def test_a_mask_of_content_stays() -> None:
    """Nothing is proved of a mask that is a graph input."""
    assert said(attention_of("y = Attention (q, k, v, c)").spec) == (False, "bool")


@pytest.mark.parametrize("outputs", ["", ", float[B,4,L,8] pk, float[B,4,L,8] pv"], ids=["alone", "with presents"])
def test_repeated_heads_are_grouped_unless_they_are_an_output(outputs: str) -> None:
    """Keys from before the repeat of heads are used, unless a present output contains the repeated ones."""
    names = "y, pk, pv" if outputs else "y"
    steps = f"""a = Unsqueeze (k, two)  b = Tile (a, wide)  d = Reshape (b, heads)
        e = Unsqueeze (v, two)  f = Tile (e, wide)  g = Reshape (f, heads)  {names} = Attention (q, d, g)"""
    attention = attention_of(steps, f"{_Q}, float[B,2,L,8] k, float[B,2,L,8] v", outputs)
    assert (attention.spec.kv_num_heads, attention.key.name) == ((4, "d") if outputs else (2, "k"))


@pytest.mark.parametrize(
    ("scale", "rule"), [("0.35355339", "1/sqrt(d_k)"), ("0.125", "1/d_k"), ("1.0", "none"), ("0.35", 0.35)]
)
def test_a_scale_is_said_as_a_rule(scale: str, rule: object) -> None:
    """1/sqrt(8) rounded to float32 becomes the rule; the next number stays a number."""
    attention = attention_of(f"y = Attention <scale = {scale}> (q, k, v)")
    assert attention.spec.scale == (pytest.approx(rule) if isinstance(rule, float) else rule)
