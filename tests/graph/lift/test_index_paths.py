"""Masks that change at a large length that is no constant of the graph: none may be removed."""

import numpy as np
import pytest

from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.graph.lift.masks.band_trial import NOTHING_PROVED, MaskReading, Proved
from tests.graph.lift.test_mask_bands import CAUSAL_AND_MORE, EXACTLY_CAUSAL, judge

INT = np.int64
CONSTANTS = {
    "c300": INT(300),
    "c301": INT(301),
    "c20": INT(20),
    "c400": INT(400),
    "quarter": np.float32(0.25),
    "hundred": np.float32(100),
    "permille": np.float32(0.001),
    "unit": np.float32(1),
    "sparse": np.float32(0.0025),
    "sixty": np.float32(60),
    "minus": np.array([-1], INT),
    "two": np.array([2], INT),
    "pair": np.array([-1, 2], INT),
    "axes": np.array([1], INT),
}
_FLOATS = "back = Sub (i, j) far = Cast <to: int = 1> (back)"
# Each hides some earlier key, but only beyond a few hundred positions.
WINDOWS = {
    "chunk": "a = Div (i, c400) b = Div (j, c400) near = Equal (a, b)",
    "chunk-in-two-steps": "a = Div (i, c20) e = Div (a, c20) b = Div (j, c20) f = Div (b, c20) near = Equal (e, f)",
    "chunk-by-floor": """
        a = Cast <to: int = 1> (i)  e = Mul (a, sparse)  g = Floor (e)
        b = Cast <to: int = 1> (j)  f = Mul (b, sparse)  h = Floor (f)
        near = Equal (g, h)""",
    "quarters": f"{_FLOATS} a = Mul (far, quarter) near = Less (a, hundred)",
    "thousandths": f"{_FLOATS} a = Mul (far, permille) near = Less (a, unit)",
    "squares": f"{_FLOATS} a = Mul (far, far) near = Less (a, hundred)",
    "remainders": "back = Sub (i, j) a = Mod (back, c400) near = Equal (a, back)",
    "of-eight-bits": """
        back = Sub (i, j)  a = Cast <to: int = 3> (back)  b = Cast <to: int = 7> (a)  near = Equal (b, back)""",
    "roots": f"{_FLOATS} a = Abs (far) b = Sqrt (a) near = Less (b, hundred)",
}


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_window_that_no_single_number_tells_stays(window: str) -> None:
    """The mask is kept in addition to is_causal; if it is not causal, nothing is proved."""
    joined = f"seen = LessOrEqual (j, i) {window} mask = And (seen, near)"
    assert judge(joined, constants=CONSTANTS) == CAUSAL_AND_MORE
    alone = f"key = Identity (rows) {window} mask = Identity (near)"
    inputs = "int64[batch, length] ids, int64[batch, length] padding, float[batch, length, 8] rows"
    assert judge(alone, constants=CONSTANTS, inputs=inputs) == NOTHING_PROVED


GATES = {
    "of-a-fraction": "a = Cast <to: int = 1> (scalar) b = Mul (a, permille) long = Greater (b, unit)",
    "of-a-sum": "a = Sub (scalar, c300) long = Greater (a, c301)",
    "between-two": "a = Greater (scalar, c301) b = Less (scalar, c400) long = And (a, b)",
    "of-a-greatest-position": """
        a = Greater (at, c400)  b = Cast <to: int = 6> (a)  c = ReduceMax (b)  long = Cast <to: int = 9> (c)""",
    "of-a-count": """
        a = Greater (at, c400)  b = Cast <to: int = 7> (a)  c = ReduceSum (b)  long = Cast <to: int = 9> (c)""",
}


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_causality_that_a_length_turns_off_is_none(gate: str) -> None:
    """A length beyond all tried lengths would show later keys."""
    mask = f"seen = LessOrEqual (j, i) {gate} mask = Or (seen, long)"
    assert judge(mask, constants=CONSTANTS) == NOTHING_PROVED


def test_a_distance_that_a_sum_limits_is_a_window() -> None:
    """|i - j| - 300 < 301 shows all keys at a distance up to 600 and hides the others."""
    inputs = "int64[batch, length] ids, int64[batch, length] padding, float[batch, length, 8] rows"
    mask = """
        key = Identity (rows)
        back = Sub (i, j)  far = Abs (back)  beyond = Sub (far, c300)  mask = Less (beyond, c301)"""
    window = MaskReading(proved=Proved.EXACTLY_BAND, band=WindowBounds(left=600, right=600))
    assert judge(mask, constants=CONSTANTS, inputs=inputs) == window


def test_a_window_of_numbers_on_both_sides() -> None:
    """i - 300 < j + 300 shows the 599 keys before the query."""
    mask = "seen = LessOrEqual (j, i) a = Sub (i, c300) b = Add (j, c300) near = Greater (b, a) mask = And (seen, near)"
    window = MaskReading(proved=Proved.EXACTLY_BAND, band=WindowBounds(left=599, right=0))
    assert judge(mask, constants=CONSTANTS) == window


def test_two_positions_laid_behind_each_other_are_no_position() -> None:
    """A Reshape of an Expand repeats half of the positions twice: chunks without a division."""
    mask = """
        half = Constant <value_int: int = 2> ()
        few = Div (scalar, half)
        places = Range (zero, few, one)
        column = Unsqueeze (places, last)
        shape = Constant <value_ints: ints = [1, 2]> ()
        twice = Expand (column, shape)
        flat = Reshape (twice, minus)
        of_i = Unsqueeze (flat, last)
        of_j = Unsqueeze (flat, first)
        near = Equal (of_i, of_j)
        same = LessOrEqual (of_j, of_i)
        mask = And (same, near)"""
    assert judge(mask, constants=CONSTANTS) == NOTHING_PROVED


def test_a_table_that_ends_before_the_sum_of_all_numbers() -> None:
    """Its last row and column are checked, although the graph is invalid at greater lengths."""
    table = np.tril(np.ones((90, 90), np.bool_))
    cut = """
        start = Constant <value_ints: ints = [0, 0]> ()
        end = Concat <axis: int = 0> (n, n)
        part = Slice (table, start, end)
        back = Sub (i, j)
        near = Less (back, c300)
        mask = And (part, near)"""
    assert judge(cut, constants={**CONSTANTS, "table": table}) == EXACTLY_CAUSAL
    table[88, 89] = True
    next_key = MaskReading(proved=Proved.BAND_AND_MORE, band=WindowBounds(right=1))
    assert judge(cut, constants={**CONSTANTS, "table": table}) == next_key


def test_positions_of_samples_are_not_known() -> None:
    """From the sixth sample on, all keys are visible; only two samples are tried."""
    mask = """
        count = Shape <start: int = 0, end: int = 1> (ids)
        samples = Squeeze (count)
        number = Range (zero, samples, one)
        each = Unsqueeze (number, middle)
        five = Constant <value_int: int = 5> ()
        late = Greater (each, five)
        seen = LessOrEqual (j, i)
        mask = Or (seen, late)"""
    assert judge(mask, constants=CONSTANTS) == NOTHING_PROVED
