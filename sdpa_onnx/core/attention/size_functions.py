"""Finds a constant scale that may be a function of a sequence length, fixed when the model was traced.

Compares numbers only; whether the scale is a fault is decided elsewhere, by running the model.
"""

import math
from collections.abc import Iterable

import numpy as np

from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["fixed_scale_reason", "round_to_float32", "size_functions"]

# Without known sizes, no longer length is tried: above it, 1/sqrt(n) is dense among float32 numbers.
_LONGEST = 1 << 16


def round_to_float32(scale: float) -> float:
    """Round a scale to float32, the type of ONNX attributes and constants."""
    return float(np.float32(scale))


def size_functions(size: int, head_dim: int) -> dict[str, float]:
    """Compute scales that depend on a length n, by formula.

    Source: 1/n and 1/sqrt(n) are means over keys; log n over a width is the
    length scaling of Chiang and Cholak 2022, section 5.3, and of later models.

    Example:
        >>> size_functions(16, 64)["1/n"]
        0.0625
    """
    scales = {"1/n": 1 / size, "1/sqrt(n)": size**-0.5} if size > 0 else {}
    if size > 1:
        widths = {"d_k": head_dim, "sqrt(d_k)": math.sqrt(head_dim)}
        scales |= {f"log(n)/{name}": math.log(size) / width for name, width in widths.items()}
        scales |= {"1/sqrt(n d_k)": (size * head_dim) ** -0.5}
    return scales


def fixed_scale_reason(spec: AttentionSpec, lengths: Iterable[int] | None) -> str:
    """Explain why a constant scale may be valid for one length only; "" if there is no reason.

    1, 1/sqrt(d_k) and 1/d_k follow known rules and never raise a doubt.

    Args:
        spec: The attention.
        lengths: Lengths that the model was traced at. None if they are unknown: then
            1/n and 1/sqrt(n) of an integer n are tried.

    Example:
        >>> spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=64, scale=0.0625)
        >>> fixed_scale_reason(spec, None)
        'scale 0.0625 is not 1/sqrt(d_k) = 0.125; it equals 1/n for a length n = 16 and may be fixed to that length'
    """
    scale, width = round_to_float32(spec.scale_value), spec.head_dim
    if not 0.0 < scale < math.inf or scale in {round_to_float32(rule) for rule in (1.0, width**-0.5, 1 / width)}:
        return ""
    candidates = _integer_lengths(scale) if lengths is None else sorted({size for size in lengths if size > 1})
    for size in candidates:
        for formula, value in size_functions(size, width).items():
            if round_to_float32(value) == scale:
                return (
                    f"scale {scale:.6g} is not 1/sqrt(d_k) = {width**-0.5:.6g}; it equals {formula} for a length "
                    f"n = {size} and may be fixed to that length"
                )
    return ""


def _integer_lengths(scale: float) -> list[int]:
    """Integers n for which the scale can be 1/n or 1/sqrt(n)."""
    nearest = (round(1 / scale), round(scale**-2))
    return [size for size in nearest if 1 < size <= _LONGEST]
