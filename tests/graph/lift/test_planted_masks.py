"""Masks that look causal at small sizes, for some contents, or almost: none may be read as causality alone."""

import numpy as np
import pytest

from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.graph.lift.masks.band_trial import NOTHING_PROVED, MaskReading, Proved
from tests.graph.lift.test_mask_bands import CAUSAL, CAUSAL_AND_MORE, EXACTLY_CAUSAL, INPUTS, judge

CONSTANTS = {
    name: np.int64(name[1:]) for name in ("c0", "c2", "c7", "c8", "c10", "c16", "c20", "c50", "c64", "c100", "c150")
}
SEEN = "key = Identity (rows)  seen = LessOrEqual (j, i)  back = Sub (i, j)"
WITH_KEY = f"{INPUTS}, float[batch, length, 8] rows"


def exactly(**bounds: int) -> MaskReading:
    return MaskReading(proved=Proved.EXACTLY_BAND, band=WindowBounds(**bounds))


def and_more(**bounds: int) -> MaskReading:
    return MaskReading(proved=Proved.BAND_AND_MORE, band=WindowBounds(**bounds))


# What is proved of each: a window by its width, a part that hides more stays a mask, and what shows a later key for
# some contents is not causal at all.
PLANTED = {
    "a window of 100": ("near = Less (back, c100)  mask = And (seen, near)", exactly(left=99, right=0)),
    "a window of 64 on both sides": ("far = Abs (back)  mask = LessOrEqual (far, c64)", exactly(left=64, right=64)),
    "one key too many": ("next = Add (i, one)  mask = LessOrEqual (j, next)", exactly(right=1)),
    "one key too few": ("mask = Less (j, i)", CAUSAL_AND_MORE),
    "the other direction": ("mask = GreaterOrEqual (j, i)", exactly(left=0)),
    "a prefix of 10": ("early = Less (j, c10)  mask = Or (seen, early)", and_more(right=9)),
    "a prefix from the inputs": (
        "wide = Unsqueeze (ids, middle)  early = Less (j, wide)  mask = Or (seen, early)",
        NOTHING_PROVED,
    ),
    "chunks of 8": ("a = Div (i, c8)  b = Div (j, c8)  mask = Equal (a, b)", NOTHING_PROVED),
    "causal chunks of 8": (
        "a = Div (i, c8)  b = Div (j, c8)  same = Equal (a, b)  mask = And (seen, same)",
        CAUSAL_AND_MORE,
    ),
    "queries from 20 on see all": ("late = GreaterOrEqual (i, c20)  mask = Or (seen, late)", NOTHING_PROVED),
    "queries from 20 to 99 see all": (
        "late = GreaterOrEqual (i, c20)  end = Less (i, c100)  some = And (late, end)  mask = Or (seen, some)",
        NOTHING_PROVED,
    ),
    "a window lost by the keys from 20 on": (
        "near = Less (back, c8)  late = GreaterOrEqual (j, c20)  either = Or (near, late)  mask = And (seen, either)",
        CAUSAL_AND_MORE,
    ),
    "every second key": ("a = Mod (back, c2)  even = Equal (a, c0)  mask = And (seen, even)", CAUSAL_AND_MORE),
    "a key that an id shows to all": (
        "wide = Unsqueeze (ids, middle)  mark = Equal (wide, c7)  mask = Or (seen, mark)",
        NOTHING_PROVED,
    ),
    "a query that an id lets see all": (
        (
            "sides = Constant <value_ints: ints = [1, 3]> ()  tall = Unsqueeze (ids, sides)  mark = Equal (tall, c7)"
            "  mask = Or (seen, mark)"
        ),
        NOTHING_PROVED,
    ),
    "documents by id": (
        (
            "sides = Constant <value_ints: ints = [1, 3]> ()  tall = Unsqueeze (ids, sides)"
            "  wide = Unsqueeze (ids, middle)  same = Equal (tall, wide)  mask = And (seen, same)"
        ),
        CAUSAL_AND_MORE,
    ),
    "far later keys": ("later = Sub (j, i)  far = Greater (later, c150)  mask = Or (seen, far)", NOTHING_PROVED),
    "a window that widens after 50": (
        (
            "near = Less (back, c10)  wider = Less (back, c20)  late = Greater (i, c50)  more = And (wider, late)"
            "  either = Or (near, more)  mask = And (seen, either)"
        ),
        and_more(left=19, right=0),
    ),
    "a window of a width from the inputs": (
        "wide = Unsqueeze (ids, middle)  near = Less (back, wide)  mask = And (seen, near)",
        CAUSAL_AND_MORE,
    ),
    "causal in one head of two": (
        "other = Or (seen, full)  mask = Concat <axis: int = 0> (seen, other)",
        NOTHING_PROVED,
    ),
    "a factor from the inputs": (
        (
            "hidden = Where (seen, nothing, lowest)  wide = Unsqueeze (ids, middle)  f = Cast <to: int = 1> (wide)"
            "  mask = Mul (hidden, f)"
        ),
        NOTHING_PROVED,
    ),
    "padding may hide a query's every key": ("mask = And (seen, padded)", CAUSAL_AND_MORE),
    "the same by the lowest number": (
        "both = And (seen, padded)  mask = Where (both, nothing, lowest)",
        MaskReading(proved=Proved.LOWEST_AND_MORE, band=CAUSAL),
    ),
    "a window and padding by the lowest number": (
        "near = Less (back, c16)  a = And (seen, near)  both = And (a, padded)  mask = Where (both, nothing, lowest)",
        MaskReading(proved=Proved.LOWEST_AND_MORE, band=WindowBounds(left=15, right=0)),
    ),
    "a position bias of padded positions": (
        (
            "count = CumSum (padding, one)  place = Sub (count, one)  number = Cast <to: int = 1> (place)"
            "  wide = Unsqueeze (number, middle)  hidden = Where (seen, nothing, lowest)  mask = Add (wide, hidden)"
        ),
        MaskReading(proved=Proved.LOWEST_AND_MORE, band=CAUSAL),
    ),
    "a position bias and the lowest number": (
        "hidden = Where (seen, nothing, lowest)  mask = Add (hidden, bias)",
        MaskReading(proved=Proved.LOWEST_AND_MORE, band=CAUSAL),
    ),
}


@pytest.mark.parametrize(("steps", "expected"), PLANTED.values(), ids=PLANTED)
def test_planted_mask(steps: str, expected: MaskReading) -> None:
    """Exactly what the mask hides is proved, and nothing else."""
    found = judge(f"{SEEN} {steps}", inputs=WITH_KEY, constants={**CONSTANTS, "full": np.True_})
    assert found == expected
    assert found != EXACTLY_CAUSAL


def test_part_that_is_causal_alone() -> None:
    """The same check calls the plain mask causal."""
    assert judge(f"{SEEN} mask = Identity (seen)", inputs=WITH_KEY, constants=CONSTANTS) == EXACTLY_CAUSAL
