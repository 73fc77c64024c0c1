"""What differs between the attentions of two models, in sentences; judges no numbers and runs nothing."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["spec_changes"]

# Two scales closer than this are one: files hold them as float32. Source: IEEE 754, 23 bits of fraction.
_FLOAT32_STEP = 2.0**-23
# How values are laid out is told by the graph; it changes no result.
_COMPUTED = tuple(one.name for one in fields(AttentionSpec) if one.name != "layout")


def spec_changes(before: Sequence[AttentionSpec], now: Sequence[AttentionSpec]) -> list[str]:
    """One sentence a changed field, such as "The scale was 0.1768 and is 0.18".

    Args:
        before, now: In graph order.

    Returns:
        Nothing where there are not as many attentions on both sides: which is which is unknown.
    """
    if len(before) != len(now):
        return []
    changes: Counter[tuple[str, str, str]] = Counter()
    for was, is_now in zip(before, now, strict=True):
        changes.update(_changed(was, is_now))
    return [
        f"The {name}{'' if count == len(now) else f' of {count} of {len(now)} attentions'} was {was} and is {is_now}."
        for (name, was, is_now), count in changes.items()
    ]


def _changed(before: AttentionSpec, now: AttentionSpec) -> list[tuple[str, str, str]]:
    pairs = {name: (_value(before, name), _value(now, name)) for name in _COMPUTED}
    return [(name, *_said(*pair)) for name, pair in pairs.items() if not _is_same(*pair)]


def _value(spec: AttentionSpec, name: str) -> object:
    """The field; a scale as its number, whether it was given as one or as a rule."""
    return spec.scale_value if name == "scale" else getattr(spec, name)


def _is_same(was: object, is_now: object) -> bool:
    if isinstance(was, float) and isinstance(is_now, float):
        return math.isclose(was, is_now, rel_tol=_FLOAT32_STEP)
    return was == is_now


def _said(was: object, is_now: object) -> tuple[str, str]:
    """Both in as few digits as tell them apart."""
    if not (isinstance(was, float) and isinstance(is_now, float)):
        return str(was), str(is_now)
    short = f"{was:.4g}", f"{is_now:.4g}"
    return short if short[0] != short[1] else (f"{was:.9g}", f"{is_now:.9g}")
