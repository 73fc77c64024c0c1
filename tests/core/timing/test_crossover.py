"""Crossover lengths from ratios that are made up, so that the truth is known."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpa_onnx.core.timing.crossover import Crossover, LengthRatio, crossovers

_LENGTHS = (64, 128, 256, 512, 1024, 2048)


def _points(*log_ratios: float, error: float = 0.01, degrees: float = math.inf) -> list[LengthRatio]:
    return [
        LengthRatio(length=length, log_ratio=ratio, standard_error=error, degrees=degrees)
        for length, ratio in zip(_LENGTHS, log_ratios, strict=False)
    ]


def test_change_between_two_lengths() -> None:
    """Equal and opposite differences meet in the geometric middle, and the bracket is the two lengths."""
    (found,) = crossovers(_points(0.3, 0.2, -0.2, -0.3))
    assert found == Crossover(length=pytest.approx(math.sqrt(128 * 256)), low=128, high=256, wins_above=True)


def test_power_laws_cross_where_they_are_equal() -> None:
    """Times that are powers of the length cross where the formula predicts, even between the measured lengths."""
    truth, exponent = 300.0, 0.7
    ratios = [exponent * math.log(truth / length) for length in _LENGTHS]
    (found,) = crossovers(_points(*ratios))
    assert found.length == pytest.approx(truth)
    assert (found.low, found.high, found.wins_above) == (256, 512, True)


def test_arm_that_loses_beyond() -> None:
    """The result states that an arm is faster only for short sequences."""
    (found,) = crossovers(_points(-0.2, 0.2))
    assert not found.wins_above


def test_lengths_without_a_proven_sign_widen_the_bracket() -> None:
    """Where nothing is proven the change may lie: the bracket reaches from the last proof to the next."""
    (found,) = crossovers(_points(0.3, 0.3, 0.01, -0.01, -0.3))
    assert (found.low, found.high) == (128, 1024)
    assert 128 < found.length < 1024


def test_order_of_the_points_does_not_matter() -> None:
    """Lengths may be in any order."""
    points = _points(0.3, 0.2, -0.2, -0.3)
    assert crossovers(points[::-1]) == crossovers(points)


def test_several_changes() -> None:
    """An arm that is overtaken and overtakes again has two crossovers."""
    found = crossovers(_points(-0.2, 0.2, -0.2))
    assert [(one.low, one.high, one.wins_above) for one in found] == [(64, 128, False), (128, 256, True)]


@pytest.mark.parametrize(
    "ratios",
    [(), (0.3,), (0.3, 0.2, 0.1), (0.3, 0.01, -0.01), (0.01, -0.01), (0.0, 0.0)],
    ids=["nothing", "one", "one-sign", "unproven-end", "unproven", "equal"],
)
def test_none_is_claimed_without_proof(ratios: tuple[float, ...]) -> None:
    """A sign that the errors could have made is no change."""
    assert crossovers(_points(*ratios)) == ()


def test_proof_is_shared_out_over_the_lengths() -> None:
    """At 1 % over two lengths each needs 2.807 standard errors: just above proves, just below does not."""
    assert crossovers(_points(0.02808, -0.3))
    assert not crossovers(_points(0.02806, -0.3))


def test_few_degrees_of_freedom_need_more() -> None:
    """Eleven degrees of freedom require 3.497 standard errors where a normal distribution requires 2.807."""
    assert crossovers(_points(0.0350, -0.3, degrees=11))
    assert not crossovers(_points(0.0349, -0.3, degrees=11))


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6), st.floats(1e-4, 0.3))
def test_crossover_lies_inside_its_bracket(ratios: list[float], error: float) -> None:
    """Whatever is measured, the length lies between the two proofs, and brackets do not overlap."""
    found = crossovers(_points(*ratios, error=error))
    assert all(one.low <= one.length <= one.high for one in found)
    assert all(first.high <= second.low for first, second in pairwise(found))


def test_false_changes_are_rare() -> None:
    """Of 2000 arms that are equal at six lengths, at most 1 % have a crossover; noise alone has 20 expected signs."""
    rng = np.random.default_rng(0)
    found = [crossovers(_points(*rng.normal(0.0, 0.01, 6))) for _ in range(2000)]
    assert sum(map(len, found)) <= 20
