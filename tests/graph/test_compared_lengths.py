"""Numbers that a graph compares with lengths or positions are found; other constants are not."""

import onnx
import pytest

from sdpa_onnx.graph.compared_lengths import compared_lengths
from sdpa_onnx.graph.model import load_model

_HEAD = """<ir_version: 10, opset_import: ["": 18]>
g (float[b, s, 64] x, int64[b, s] position_ids, int64[b, s] input_ids) => (bool y)"""
_POSITIONS = """
    shape = Shape <start = 1, end = 2> (x)
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    at = Constant <value_ints = [0]> ()
    length = Squeeze (shape, at)
    i = Range (zero, length, one)
    row = Unsqueeze (i, one)
    column = Unsqueeze (i, zero)
"""


def found(body: str) -> tuple[int, ...]:
    return compared_lengths(load_model(onnx.parser.parse_model(f"{_HEAD} {{{_POSITIONS}{body}}}")).ir)


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        ("w = Constant <value_int = 64> () d = Sub (row, column) y = Less (d, w)", (64,)),
        ("w = Constant <value_int = -63> () d = Sub (column, row) y = GreaterOrEqual (d, w)", (63,)),
        ("w = Constant <value_int = 63> () first = Sub (row, w) y = GreaterOrEqual (column, first)", (63,)),
        (
            """w = Constant <value_float = 12.0> () f = Cast <to = 1> (column) r = Cast <to = 1> (row) d = Sub (r, f)
            a = Abs (d) y = LessOrEqual (a, w)""",
            (12,),
        ),
        ("c = Constant <value_int = 128> () p = Div (row, c) q = Div (column, c) y = Equal (p, q)", (128,)),
        ("w = Constant <value_ints = [32, 96]> () d = Sub (length, w) y = Less (d, length)", (32, 96)),
        ("m = Constant <value_int = 300> () y = Less (length, m)", (300,)),
        ("m = Constant <value_int = 500> () n = Min (length, m) y = Cast <to = 9> (n)", (500,)),
        ("w = Constant <value_int = 77> () y = Greater (position_ids, w)", (77,)),
        (
            """k = Constant <value_int = -40> () s = Concat <axis = 0> (shape, shape)
            o = ConstantOfShape (s) y = Trilu (o, k)""",
            (40,),
        ),
        (
            """s = Constant <value_ints = [-48]> () e = Constant <value_ints = [9223372036854775807]> ()
            y = Slice (x, s, e, one)""",
            (48,),
        ),
    ],
)
def test_a_number_compared_with_a_position_is_found(body: str, numbers: tuple[int, ...]) -> None:
    """Windows in every spelling, chunks, branches, clipped lengths, diagonals and kept parts of a cache."""
    assert found(body) == numbers


@pytest.mark.parametrize(
    "body",
    [
        "w = Constant <value_float = 64.0> () m = ReduceSum (x) y = Less (m, w)",
        "w = Constant <value_int = 49407> () y = Equal (input_ids, w)",
        "w = Constant <value_int = 2147483647> () y = Less (length, w)",
        """s = Constant <value_ints = [32]> () e = Constant <value_ints = [64]> () a = Constant <value_ints = [2]> ()
        y = Slice (x, s, e, a)""",
        "y = GreaterOrEqual (row, column)",
    ],
    ids=["activations", "a token", "no limit", "a part of the width", "causal"],
)
def test_other_constants_are_no_lengths(body: str) -> None:
    """They would call for long runs that show nothing."""
    assert found(body) == ()
