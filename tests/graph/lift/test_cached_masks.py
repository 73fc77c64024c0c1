"""Masks of cached and new keys: causal behind the cache at every number of cached keys, or not causal at all."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import MaskKind
from sdpa_onnx.core.attention.window_bounds import WindowBounds, bounds_of
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.convert.convert_model import convert_model
from tests.graph.lift.judged import judge_site, run

# i and j: places of queries (column) and keys (row); a query's place counts the cached keys.
_TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
g (float[B,2,L,8] q, float[B,2,L,8] new_k, float[B,2,L,8] new_v, float[B,2,P,8] past_k, float[B,2,P,8] past_v,
   TOTAL bool[B,L] mark) => (float[B,2,L,8] y, float[B,2,S,8] k, float[B,2,S,8] v)
{
  k = Concat <axis = 2> (past_k, new_k)
  v = Concat <axis = -2> (past_v, new_v)
  zero = Constant <value_int: int = 0> ()
  one = Constant <value_int: int = 1> ()
  first = Constant <value_ints: ints = [0]> ()
  last = Constant <value_ints: ints = [-1]> ()
  middle = Constant <value_ints: ints = [1, 2]> ()
  ones = Constant <value_ints: ints = [1]> ()
  n1 = Shape <start: int = 2, end: int = 3> (q)
  n = Squeeze (n1)
  past1 = Shape <start: int = 2, end: int = 3> (past_k)
  past = Squeeze (past1)
  total1 = Shape <start: int = 2, end: int = 3> (k)
  total = Squeeze (total1)
  end = Add (past, n)
  raw = Range (zero, n, one)
  i0 = Unsqueeze (raw, last)
  i = Add (i0, past)
  all = Range (zero, total, one)
  j = Unsqueeze (all, first)
  back = Sub (i, j)
  seen = LessOrEqual (j, i)
  nothing = Constant <value_float: float = 0.0> ()
  lowest = Constant <value_float: float = -3.4028234663852886e38> ()
  flip = Transpose <perm = [0, 1, 3, 2]> (k)
  s0 = MatMul (q, flip)
  MASK
  scale = Constant <value_float: float = 0.35> ()
  s1 = Mul (s0, scale)
  USE
  p = Softmax <axis = -1> (s)
  y = MatMul (p, v)
}
"""
_HIDES = "s = Where (mask, s1, infinite)"
_ADDS = "s = Add (s1, mask)"
_BUFFER = np.tril(np.ones((1, 1, 90, 90), np.bool_))
_WRONG_BUFFER = _BUFFER.copy()
_WRONG_BUFFER[0, 0, 77, 88] = True
_NUMBERS = {f"c{number}": np.int64(number) for number in (5, 8, 16, 20, 100)}
_CONSTANTS = {**_NUMBERS, "infinite": np.float32(-np.inf), "buffer": _BUFFER, "wrong": _WRONG_BUFFER}
_CUT = """
  two = Constant <value_ints: ints = [2]> ()
  three = Constant <value_ints: ints = [3]> ()
  rows = Slice ({0}, past1, total1, two)
  mask = Slice (rows, first, total1, three)"""
CAUSAL = WindowBounds(right=0)


def found_in(mask: str, use: str = _HIDES, total: str = "bool[B,T] padding,") -> tuple[OnnxModel, GraphAttention]:
    """The lifted copy of the graph with this mask, and its only attention."""
    text = _TEXT.replace("MASK", mask).replace("USE", use).replace("TOTAL", total)
    proto = onnx.parser.parse_model(text)
    read = {name for node in proto.graph.node for name in node.input}
    for name in sorted(_CONSTANTS.keys() & read):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(_CONSTANTS[name]), name))
    model = ir.from_proto(proto)
    (one,) = find_attentions(model).found
    assert one.attention is not None, one.reason
    return OnnxModel(ir=model, sites=()), one.attention


EXACT = {
    "places behind the cache": ("mask = Identity (seen)", CAUSAL),
    "a range that begins behind the cache": (
        "places = Range (past, end, one)  wide = Unsqueeze (places, last)  mask = GreaterOrEqual (wide, j)",
        CAUSAL,
    ),
    "keys minus queries": (
        "gap = Sub (total, n)  at = Add (i0, gap)  later = Greater (j, at)  mask = Not (later)",
        CAUSAL,
    ),
    "a triangle moved by the cache": (
        (
            "shape = Concat <axis: int = 0> (n1, total1)  yes = ConstantOfShape <value: tensor = bool[1] {1}> (shape)"
            "  mask = Trilu <upper: int = 0> (yes, past)"
        ),
        CAUSAL,
    ),
    "rows of a buffer": (_CUT.format("buffer"), CAUSAL),
    "a window of 16": ("near = Less (back, c16)  mask = And (seen, near)", WindowBounds(left=15, right=0)),
    "a window of 100": ("near = Less (back, c100)  mask = And (seen, near)", WindowBounds(left=99, right=0)),
}
MORE = {
    "padding": "wide = Unsqueeze (padding, middle)  mask = And (seen, wide)",
    "chunks of 8": "a = Div (i, c8)  b = Div (j, c8)  same = Equal (a, b)  mask = And (seen, same)",
    "strictly earlier": "mask = Less (j, i)",
    "aligned to the first key": "mask = LessOrEqual (j, i0)",
    "a mark of the query": (
        "sides = Constant <value_ints: ints = [1, 3]> ()  tall = Unsqueeze (mark, sides)  mask = And (seen, tall)"
    ),
}
# Each shows a later key at some length, at some number of cached keys, or for some contents.
NOT = {
    "causal for one query only": "single = Equal (n, one)  many = Not (single)  mask = Or (seen, many)",
    "causal for several queries only": "single = Equal (n, one)  mask = Or (seen, single)",
    "causal without a cache only": "cached = Greater (past, zero)  mask = Or (seen, cached)",
    "causal with up to 20 cached keys": "long = Greater (past, c20)  mask = Or (seen, long)",
    "places from 100 on see all": "late = GreaterOrEqual (i, c100)  mask = Or (seen, late)",
    "a query that a mark lets see all": (
        "sides = Constant <value_ints: ints = [1, 3]> ()  tall = Unsqueeze (mark, sides)  mask = Or (seen, tall)"
    ),
    "a key that padding shows to all": "wide = Unsqueeze (padding, middle)  mask = Or (seen, wide)",
    "far later keys": "later = Sub (j, i)  far = Greater (later, c100)  mask = Or (seen, far)",
    "twice the cache": "more = Add (i, past)  mask = LessOrEqual (j, more)",
    "without the cache for late queries": (
        "late = Greater (i0, c20)  early = Not (late)  a = And (seen, early)  b = And (late, late)  mask = Or (a, b)"
    ),
    "chunks of 8": "a = Div (i, c8)  b = Div (j, c8)  mask = Equal (a, b)",
    "keys up to the length": "mask = LessOrEqual (j, n)",
}
WIDER = {
    "one key too many": ("more = Add (i, one)  mask = LessOrEqual (j, more)", 1),
    "five keys too many": ("more = Add (i, c5)  mask = LessOrEqual (j, more)", 5),
    "one wrong entry at the end of a buffer": (_CUT.format("wrong"), 11),
}


@pytest.mark.parametrize(("mask", "band"), EXACT.values(), ids=EXACT)
def test_causal_behind_the_cache(mask: str, band: WindowBounds) -> None:
    """The cache becomes an input of the attention, causality and windows replace the mask."""
    _, attention = found_in(mask)
    assert (bounds_of(attention.spec), attention.spec.has_past, attention.attn_mask) == (band, True, None)
    assert (attention.past_key.name, attention.key.name) == ("past_k", "new_k")  # type: ignore[union-attr]
    assert (attention.present_key.name, attention.present_value.name) == ("k", "v")  # type: ignore[union-attr]


@pytest.mark.parametrize("mask", MORE.values(), ids=MORE)
def test_causal_behind_the_cache_and_more(mask: str) -> None:
    """What else a mask hides stays a mask."""
    _, attention = found_in(mask)
    assert (bounds_of(attention.spec), attention.spec.mask) == (CAUSAL, MaskKind.BOOL)


@pytest.mark.parametrize("mask", NOT.values(), ids=NOT)
def test_masks_that_are_not_causal_behind_the_cache(mask: str) -> None:
    """The mask is kept, and nothing is skipped."""
    _, attention = found_in(mask)
    assert attention.skipped_bounds.right is None
    assert attention.spec.mask is MaskKind.BOOL


@pytest.mark.parametrize(("mask", "right"), WIDER.values(), ids=WIDER)
def test_later_keys_are_never_lost(mask: str, right: int) -> None:
    """The widest query decides."""
    assert bounds_of(found_in(mask)[1].spec) == WindowBounds(right=right)


def test_a_lowest_number_and_padding_keep_the_mask() -> None:
    """Only the band is known, for a query whose keys are all padded averages over all keys; blocks skip by it."""
    mask = "wide = Unsqueeze (padding, middle)  both = And (seen, wide)  mask = Where (both, nothing, lowest)"
    _, attention = found_in(mask, _ADDS)
    assert (bounds_of(attention.spec), attention.mask_band) == (WindowBounds(), CAUSAL)
    assert attention.spec.has_past


_QUICK = (("causal", Form.ORT_GQA), ("window", Form.BLOCKED))


def feeds(queries: int, past: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(queries + 1000 * past)
    sizes = {"q": queries, "new_k": queries, "new_v": queries, "past_k": past, "past_v": past}
    drawn = {name: rng.standard_normal((2, 2, size, 8)).astype(np.float32) for name, size in sizes.items()}
    padding = np.ones((2, past + queries), np.bool_)
    padding[0, : (past + queries) // 3] = False
    return {**drawn, "padding": padding, "mark": np.ones((2, queries), np.bool_)}


RUN = {
    "causal": (EXACT["places behind the cache"][0], _HIDES),
    "window": (EXACT["a window of 16"][0], _HIDES),
    "padding": (MORE["padding"].replace("mask =", "seen_too =") + "  mask = Or (seen_too, own)", _HIDES),
    "lowest": (
        "wide = Unsqueeze (padding, middle)  both = And (seen, wide)  mask = Where (both, nothing, lowest)",
        _ADDS,
    ),
    "buffer": (_CUT.format("buffer"), _HIDES),
}


@pytest.mark.parametrize(
    ("case", "form"),
    [
        pytest.param(case, form, marks=() if (case, form) in _QUICK else pytest.mark.slow)
        for case in RUN
        for form in (Form.BLOCKED, Form.ORT_GQA, Form.ORT_MHA)
    ],
)
def test_forms_compute_the_same_at_several_cache_lengths(case: str, form: Form) -> None:
    """Reading and written form are right by the oracle, with and without cached keys, for one query and for many."""
    mask, use = RUN[case]
    if case == "padding":  # the own key is never padded, so that no row of the source is NaN
        mask = f"own = Equal (i, j)  {mask}"
    model, _ = found_in(mask, use)
    if (case, form) == ("lowest", Form.ORT_GQA):
        assert not convert_model(model, form).converted
        return
    converted = convert_model(model, form)
    assert converted.converted
    for queries, past in ((1, 0), (1, 7), (5, 0), (17, 40), (70, 19)):
        drawn = feeds(queries, past)
        drawn = {value.name: drawn[value.name] for value in model.ir.graph.inputs if value.name in drawn}
        findings = find_attentions(model.ir)
        (site,) = [one.attention.site for one in findings.found if one.attention is not None]
        source = run(findings.model, drawn, site.taps)
        result = run(converted.model.ir, drawn, [])
        for values in (source, result):
            assert judge_site(site, {**source, "y": values["y"]}, "float32").verdict == "ok", (queries, past)
        for name in ("k", "v"):
            np.testing.assert_array_equal(result[name], source[name])
