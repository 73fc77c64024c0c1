"""Describes in sentences how the attentions of two models differ.

Compares specs only; runs nothing and decides no verdict.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["spec_changes"]

# Scales closer than this are equal, because files store them as float32. Source: IEEE 754, 23 bits of fraction.
_FLOAT32_STEP = 2.0**-23
# The layout is compared with the graph; it changes no result.
_COMPARED = tuple(field.name for field in fields(AttentionSpec) if field.name != "layout")


def spec_changes(before: Sequence[AttentionSpec], now: Sequence[AttentionSpec]) -> list[str]:
    """Write one sentence for each changed field, such as "The scale was 0.1768 and is 0.18".

    Args:
        before, now: Specs in graph order.

    Returns:
        Sentences; empty if the numbers of attentions differ, because then they cannot be matched.
    """
    if len(before) != len(now):
        return []
    changes: Counter[tuple[str, str, str]] = Counter()
    for was, is_now in zip(before, now, strict=True):
        changes.update(_changed(was, is_now))
    return [_sentence(*change, count=count, total=len(now)) for change, count in changes.items()]


def _sentence(name: str, was: str, is_now: str, *, count: int, total: int) -> str:
    which = "" if count == total else f" of {count} of {total} attentions"
    if name == "is_causal":
        subject = "The attention" if total == 1 else f"{count} of {total} attentions"
        were, are = ("was", "is") if count == 1 else ("were", "are")
        return (
            f"{subject} {were} causal and no longer {are}."
            if was == "True"
            else f"{subject} {were} not causal and {are}."
        )
    return f"The {name}{which} was {was} and is {is_now}."


def _changed(before: AttentionSpec, now: AttentionSpec) -> list[tuple[str, str, str]]:
    pairs = {name: (_value(before, name), _value(now, name)) for name in _COMPARED}
    return [(name, *_formatted(*pair)) for name, pair in pairs.items() if not _is_same(*pair)]


def _value(spec: AttentionSpec, name: str) -> object:
    """Return the field; a scale rule is converted to its number."""
    return spec.scale_value if name == "scale" else getattr(spec, name)


def _is_same(was: object, is_now: object) -> bool:
    if isinstance(was, float) and isinstance(is_now, float):
        return math.isclose(was, is_now, rel_tol=_FLOAT32_STEP)
    return was == is_now


def _formatted(was: object, is_now: object) -> tuple[str, str]:
    """Format both values with as few digits as distinguish them."""
    if not (isinstance(was, float) and isinstance(is_now, float)):
        return str(was), str(is_now)
    short = f"{was:.4g}", f"{is_now:.4g}"
    return short if short[0] != short[1] else (f"{was:.9g}", f"{is_now:.9g}")
