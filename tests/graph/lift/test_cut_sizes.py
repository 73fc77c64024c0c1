"""Lengths of Slice and Range whose limits are axis sizes: a position table cut at the length of the input."""

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from sdpa_onnx.graph.lift.cut_sizes import counted, sliced
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.sizes import SameSizes, SizeEntry, SymbolicSize
from tests.graph.lift.judged import judge_all

_LENGTH, _OTHER = (SymbolicSize(("axis", name)) for name in "LM")
_LIMITS: tuple[SizeEntry, ...] = (0, 1, 5, -1, 2**63 - 1, _LENGTH, _OTHER, _LENGTH + 2, _LENGTH + _OTHER, _LENGTH - 3)


def _at(size: SizeEntry, numbers: dict[str, int]) -> int:
    """The number that a size is at numbers of its axes."""
    if not isinstance(size, SymbolicSize):
        return size
    if size.terms[0] == "axis":
        return numbers[str(size.terms[1])]
    one, other = (_at(part, numbers) for part in size.terms[1:])  # type: ignore[arg-type]  # sizes
    return {"+": one + other, "-": one - other, "*": one * other, "cut": min(one, other)}[str(size.terms[0])]


@pytest.mark.parametrize(("size", "start", "end"), [*itertools.product((7, _LENGTH, _OTHER), _LIMITS[:4], _LIMITS)])
def test_what_a_slice_keeps(size: SizeEntry, start: int, end: SizeEntry) -> None:
    """At every length: what numpy keeps."""
    found = sliced(size, start, end)
    for length, other in itertools.product(range(9), range(9)) if found is not None else ():
        numbers = {"L": length, "M": other}
        assert _at(found, numbers) == np.zeros(_at(size, numbers))[start : _at(end, numbers)].size  # type: ignore[arg-type]  # not None


@pytest.mark.parametrize(("start", "limit"), [*itertools.product(_LIMITS, _LIMITS[:4] + _LIMITS[5:])])
def test_what_a_range_has(start: SizeEntry, limit: SizeEntry) -> None:
    """At every length: what numpy has, and only where all of its limits are sizes."""
    found = counted(start, limit, 1)
    for length, other in itertools.product(range(9), range(9)) if found is not None else ():
        numbers = {"L": length, "M": other}
        assert _at(found, numbers) == np.arange(_at(start, numbers), _at(limit, numbers)).size  # type: ignore[arg-type]  # not None


def test_known_ones() -> None:
    """The rules are not empty."""
    assert sliced(512, 0, _LENGTH) == SymbolicSize(("cut", _LENGTH, 512))
    assert sliced(_LENGTH, 0, 2**63 - 1) == _LENGTH
    assert sliced(8, 0, 4) == 4
    assert counted(_OTHER, _OTHER + _LENGTH, 1) == _LENGTH
    assert sliced(_LENGTH, 1, _LENGTH) is None


def test_a_cut_is_known_by_name() -> None:
    """A name that shape inference invents stays one, and what the slice wants stays known."""
    names, invented = SameSizes(), SymbolicSize(("axis", "unk__1"))
    names.note(invented, SymbolicSize(("cut", _LENGTH, 512)))
    assert names.wanted(invented) == _LENGTH
    assert names.wanted(_LENGTH) is None


# How the position of each row is added to x (B, L, 16).
_POSITIONS = {
    "slice": "p = Slice (table, none, l1, one1, one1)  h = Add (x, p)",
    "slice-without-axes": "flat = Squeeze (table, none)  p = Slice (flat, none, l1)  h = Add (x, p)",
    "range": """l = Squeeze (l1)  r = Range (zero, l, one)  flat = Squeeze (table, none)  p = Gather (flat, r)
        h = Add (x, p)""",
    "expanded-ids": """ids = Constant <value = int64[1,8] {0,1,2,3,4,5,6,7}> ()  cut = Slice (ids, none, l1, one1, one1)
        bl = Concat <axis = 0> (b1, l1)  e = Expand (cut, bl)  flat = Squeeze (table, none)  p = Gather (flat, e)
        h = Add (x, p)""",
    "tiled-ids": """l = Squeeze (l1)  r = Range (zero, l, one)  r1 = Unsqueeze (r, none)
        times = Concat <axis = 0> (b1, one1)
        e = Tile (r1, times)  flat = Squeeze (table, none)  p = Gather (flat, e)
        h = Add (x, p)""",
}
_ATTEND = """hs = Concat <axis = 0> (b1, l1, minus, eight)  r4 = Reshape (h, hs)
    q = Transpose <perm = [0, 2, 1, 3]> (r4)
    kt = Transpose <perm = [0, 1, 3, 2]> (q)  s0 = MatMul (q, kt)  s = Mul (s0, sc)  w = Softmax <axis = -1> (s)
    a = MatMul (w, q)"""
_SIZES = """<float[1,8,16] table, int64[1] none = {0}, int64[1] one1 = {1}, int64 zero = {0}, int64 one = {1},
    int64[1] minus = {-1}, int64[1] eight = {8}, float sc = {SCALE}>"""
_PLACES = {
    "main graph": "{nodes}  y = Identity (a)",
    "If": "c = Constant <value = bool {{1}}> ()  y = If (c) <then_branch = yes () => (a) {{ {nodes} }}, "
    "else_branch = no () => (a) {{ {nodes} }}>",
    "Loop": """n = Constant <value = int64 {{2}}> ()  go = Constant <value = bool {{1}}> ()
        y = Loop (n, go) <body = turn (int64 i, bool c) => (bool co, float[B,2,L,8] a) {{
          co = Identity (c)  {nodes} }}>""",
}


def _model(place: str, positions: str, scale: str = "0.35355338") -> ir.Model:
    lengths = "b1 = Shape <start = 0, end = 1> (x)  l1 = Shape <start = 1, end = 2> (x)"
    nodes = _PLACES[place].format(nodes=f"{_POSITIONS[positions]}  {_ATTEND}")
    rank = "N,B,2,L,8" if place == "Loop" else "B,2,L,8"
    text = (
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[B,L,16] x) => (float[{rank}] y)'
        f" {_SIZES.replace('SCALE', scale)} {{ {lengths}  {nodes} }}"
    )
    proto = parser.parse_model(text)
    table = next(value for value in proto.graph.value_info if value.name == "table")
    proto.graph.value_info.remove(table)
    model = ir.from_proto(proto)
    value = ir.Value(name="table", const_value=ir.tensor(np.random.default_rng(5).normal(size=(1, 8, 16)).astype("f4")))
    for node in model.graph.all_nodes():
        for at, one in enumerate(node.inputs):
            if one is not None and one.name == "table":
                node.replace_input_with(at, value)
    model.graph.register_initializer(value)
    return model


@pytest.mark.parametrize("positions", _POSITIONS)
@pytest.mark.parametrize("place", _PLACES)
def test_positions_by_length_are_read(place: str, positions: str) -> None:
    """In the main graph without a single stated shape, and in bodies."""
    found = find_attentions(_model(place, positions)).found
    assert [one.reason for one in found] == [""] * (2 if place == "If" else 1)
    for one in found:
        assert one.attention is not None
        assert (one.attention.spec.q_num_heads, one.attention.spec.head_dim) == (2, 8)


@pytest.mark.parametrize("positions", _POSITIONS)
def test_what_is_read_is_right(positions: str) -> None:
    """By the oracle; where the file has another scale than was read, it disagrees."""
    findings = find_attentions(_model("main graph", positions))
    feeds = {"x": np.random.default_rng(6).normal(size=(2, 5, 16)).astype(np.float32)}
    (agreement,) = judge_all(findings, feeds)
    assert agreement.verdict.is_right
    other = find_attentions(_model("main graph", positions, scale="0.36062445"))
    (wrong,) = judge_all(type(other)(model=other.model, found=findings.found), feeds)
    assert not wrong.verdict.is_right
