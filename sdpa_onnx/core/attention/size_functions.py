"""Scales that are simple functions of a length, in words: what a scale may have been before it was fixed.

Numbers only; which of them is a fault is decided elsewhere, by running.
"""

import math
from collections.abc import Iterable

import numpy as np

from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["scale_doubt", "size_functions", "stored"]

# A length beyond this is not looked for where no size is known: above it, 1/sqrt(n) is dense among float32 numbers.
_LONGEST = 1 << 16


def stored(scale: float) -> float:
    """The scale as a file holds it: ONNX attributes and constants are float32."""
    return float(np.float32(scale))


def size_functions(size: int, head_dim: int) -> dict[str, float]:
    """Scales that follow a length n, by their formula with `n`.

    Source: 1/n and 1/sqrt(n) are means over keys; log n over a width is the
    length scaling of Chiang and Cholak 2022, section 5.3, and of later models.

    Example:
        >>> size_functions(16, 64)["1/n"]
        0.0625
    """
    found = {"1/n": 1 / size, "1/sqrt(n)": size**-0.5} if size > 0 else {}
    if size > 1:
        widths = {"d_k": head_dim, "sqrt(d_k)": math.sqrt(head_dim)}
        found |= {f"log(n)/{name}": math.log(size) / width for name, width in widths.items()}
        found |= {"1/sqrt(n d_k)": (size * head_dim) ** -0.5}
    return found


def scale_doubt(spec: AttentionSpec, lengths: Iterable[int] | None) -> str:
    """Why a constant scale may belong to one length only; "" without doubt.

    1, 1/sqrt(d_k) and 1/d_k are the scales of known rules and are never doubted.

    Args:
        spec: The attention.
        lengths: Lengths that the model was traced at, or None where they are not known: then
            1/n and 1/sqrt(n) of a whole n are looked for.

    Example:
        >>> spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=64, scale=0.0625)
        >>> scale_doubt(spec, None)
        'scale 0.0625 is not 1/sqrt(d_k) = 0.125; it is 1/n of a length n = 16 and may have been fixed at it'
    """
    scale, width = stored(spec.scale_value), spec.head_dim
    if not 0.0 < scale < math.inf or scale in {stored(rule) for rule in (1.0, width**-0.5, 1 / width)}:
        return ""
    candidates = _whole_lengths(scale) if lengths is None else sorted({size for size in lengths if size > 1})
    for size in candidates:
        for formula, value in size_functions(size, width).items():
            if stored(value) == scale:
                return (
                    f"scale {scale:.6g} is not 1/sqrt(d_k) = {width**-0.5:.6g}; it is {formula} of a length n = {size} "
                    f"and may have been fixed at it"
                )
    return ""


def _whole_lengths(scale: float) -> list[int]:
    """Whole numbers of which the scale can be 1/n or 1/sqrt(n)."""
    near = (round(1 / scale), round(scale**-2))
    return [size for size in near if 1 < size <= _LONGEST]
