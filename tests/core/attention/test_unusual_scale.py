"""Tests of unusual_scale: which scales are named, and which follow a known rule."""

import numpy as np
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, ScaleRule
from sdpa_onnx.core.attention.unusual_scale import unusual_scale


def _said(scale: float | ScaleRule, *, width: int = 32, softcap: float = 0.0) -> str:
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=width, scale=scale, softcap=softcap)
    return unusual_scale(spec)


@pytest.mark.parametrize("width", [1, 5, 32, 64, 80, 96, 128, 192])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_known_rules_are_never_named_however_a_file_stores_them(width: int, dtype: type[np.floating]) -> None:
    """A factor, a divisor and a factor on query and key each, in every type, are 1/sqrt(d_k), 1/d_k or 1."""
    for rule in (width**-0.5, 1 / width, 1.0):
        stored = float(dtype(rule))
        divisor = 1 / float(dtype(1 / rule))
        each = float(dtype(rule**0.5)) ** 2
        assert [_said(scale, width=width) for scale in (stored, divisor, each)] == ["", "", ""]
    assert [_said(rule, width=width) for rule in ScaleRule] == ["", "", ""]


def test_a_scale_beside_the_rule_is_named_with_its_factor() -> None:
    """A scale that is 2 % off, one that is 1e-6 off, 0 and a negative one are named; none is printed as 1 time."""
    usual = 32**-0.5
    assert _said(float(np.float32(1.02 * usual))) == "scale 0.180312 = 1.02/sqrt(d_k), not the usual 1/sqrt(d_k)"
    assert "= 1.000001/sqrt(d_k)" in _said(1.000001 * usual)
    assert _said(0.0) == "scale 0 = 0/sqrt(d_k), not the usual 1/sqrt(d_k)"
    assert "= -1/sqrt(d_k)" in _said(-usual)


def test_a_scale_with_a_softcap_is_free() -> None:
    """Gemma 2 27b: d_k 128, scale 1/sqrt(144), softcap 50."""
    assert not _said(144**-0.5, width=128, softcap=50.0)
    assert _said(144**-0.5, width=128)
