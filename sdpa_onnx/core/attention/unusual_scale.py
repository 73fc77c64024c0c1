"""Names a scale that follows no known rule of d_k, so that a reader notices a scale that is wrong in the file itself.

Compares numbers only; whether the scale is intended is known to the author of the model.
"""

import math
from collections.abc import Iterator

from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["unusual_scale"]

# Significant bits of float32, float16 and bfloat16, the types in which files store a scale. Source: IEEE 754, table
# 3.5; bfloat16 has 8.
_STORED_BITS = (24, 11, 8)
# The scale of a file is at most a product of two stored factors and their rounding to float32.
_ROUNDINGS = 3 * 2.0**-24


def unusual_scale(spec: AttentionSpec) -> str:
    """A scale that is not 1/sqrt(d_k), 1/d_k or 1, with the factor between it and the usual one; "" for a known rule.

    A scale next to a softcap is never named: models with a softcap choose it freely (Gemma 2).

    Example:
        >>> unusual_scale(AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=32, scale=0.180312))
        'scale 0.180312 = 1.02/sqrt(d_k), not the usual 1/sqrt(d_k)'
        >>> unusual_scale(AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=32, scale=1.0))
        ''
    """
    scale, width = spec.scale_value, spec.head_dim
    rules = (width**-0.5, 1.0 / width, 1.0)
    if spec.softcap or any(math.isclose(scale, one, rel_tol=_ROUNDINGS) for rule in rules for one in _stored(rule)):
        return ""
    return f"scale {scale:.6g} = {_factor(scale * width**0.5)}/sqrt(d_k), not the usual 1/sqrt(d_k)"


def _stored(rule: float) -> Iterator[float]:
    """The values that a file may have for a rule: a factor or a divisor, on the scores or on query and key each."""
    yield rule
    for bits in _STORED_BITS:
        yield _rounded(rule, bits)
        yield 1.0 / _rounded(1.0 / rule, bits)
        yield _rounded(rule**0.5, bits) ** 2
        yield _rounded(rule**-0.5, bits) ** -2


def _rounded(value: float, bits: int) -> float:
    """A number with that many significant bits."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)


def _factor(value: float) -> str:
    """The factor, with as many digits as keep it apart from 1."""
    return next(text for digits in (4, 6, 9, 17) if (text := f"{value:.{digits}g}") != "1")
