"""Constant factors and the scale rule that their product matches."""

import math

import pytest

from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.graph.lift.factors import Factor, scale_of

_FLOAT16 = 2.0**-11


@pytest.mark.parametrize(("off", "is_rule"), [(0.9, True), (1.1, False)])
def test_a_factor_is_a_rule_within_its_doubt(off: float, is_rule: bool) -> None:
    """A factor just inside the rounding of its constants is 1/sqrt(head_dim); just outside, it is a number."""
    factor = Factor(number=(1 + off * _FLOAT16) / math.sqrt(64), doubt=_FLOAT16)
    assert (scale_of(factor, 64) is ScaleRule.INVERSE_SQRT) == is_rule


def test_doubts_add_up() -> None:
    """Two rounded constants may differ by both roundings."""
    factor = Factor(number=0.5, doubt=1e-3) * Factor(number=0.25, doubt=2e-3)
    assert (factor.number, factor.doubt) == (0.125, pytest.approx(3e-3))


@pytest.mark.parametrize(
    ("number", "head_dim", "rule"),
    [(1.0, 8, ScaleRule.NONE), (1.0, 1, ScaleRule.INVERSE_SQRT), (0.125, 8, ScaleRule.INVERSE), (0.3, 8, 0.3)],
)
def test_a_number_is_said_as_a_rule(number: float, head_dim: int, rule: object) -> None:
    """No factor, 1/head_dim, and a number that matches no rule."""
    assert scale_of(Factor(number=number), head_dim) == rule
