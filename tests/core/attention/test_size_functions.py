"""A scale is doubted where it is a function of a length, and only there."""

import math

import pytest

from sdpa_onnx.core.attention.size_functions import fixed_scale_reason, size_functions
from sdpa_onnx.core.attention.spec import AttentionSpec, ScaleRule


def _doubt(scale: float | ScaleRule, lengths: tuple[int, ...] | None, *, head_dim: int = 64) -> str:
    return fixed_scale_reason(AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=head_dim, scale=scale), lengths)


@pytest.mark.parametrize(
    ("scale", "formula", "length"),
    [
        (1 / 16, "1/n", 16),
        (16**-0.5 / 8, "1/sqrt(n d_k)", 16),
        (math.log(16) / 64, "log(n)/d_k", 16),
        (math.log(16) / 8, "log(n)/sqrt(d_k)", 16),
        (17**-0.5, "1/sqrt(n)", 17),
    ],
)
def test_function_of_a_traced_length(scale: float, formula: str, length: int) -> None:
    """The message names the formula and the length; for another traced length there is no doubt."""
    assert _doubt(scale, (5, length)) == (
        f"scale {scale:.6g} is not 1/sqrt(d_k) = 0.125; it equals {formula} for a length n = {length} and may be "
        "fixed to that length"
    )
    assert _doubt(scale, (5, length + 1)) == ""


@pytest.mark.parametrize("scale", [1.0, 0.125, 1 / 64, ScaleRule.NONE, ScaleRule.INVERSE, ScaleRule.INVERSE_SQRT])
@pytest.mark.parametrize("lengths", [None, (1, 8, 64)])
def test_known_rules_are_never_doubted(scale: float | ScaleRule, lengths: tuple[int, ...] | None) -> None:
    """1, 1/sqrt(d_k) and 1/d_k are rules of the width, whatever the lengths were."""
    assert _doubt(scale, lengths) == ""


@pytest.mark.parametrize(("scale", "length"), [(1 / 6, 6), (96**-0.5, 96), (1 / 1000, 1000)])
def test_length_that_nothing_tells(scale: float, length: int) -> None:
    """Without traced sizes an integer n is searched, in float32 as in a file."""
    assert f"for a length n = {length} " in _doubt(scale, None)


@pytest.mark.parametrize("scale", [0.3, 0.3535, 2.0, 0.0, -0.25, 0.17])
def test_constant_of_no_length(scale: float) -> None:
    """A constant that no integer length explains raises no doubt."""
    assert _doubt(scale, None) == ""


def test_smallest_lengths() -> None:
    """A length of 0 has no function, and the logarithm of 1 is no scale."""
    assert size_functions(0, 8) == {}
    assert list(size_functions(1, 8)) == ["1/n", "1/sqrt(n)"]
