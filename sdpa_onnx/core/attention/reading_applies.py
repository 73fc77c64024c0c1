"""Which specs can tell a reading or a fault from the right one: named conditions on a spec.

Sizes and numbers are not asked: a past of no key, or one sample, can still make two readings equal.
"""

import math
from collections.abc import Callable

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout, MaskKind

__all__ = [
    "always",
    "capped_before_hiding",
    "causal",
    "grouped",
    "has_boolean_mask",
    "has_float_mask",
    "has_lengths",
    "has_mask",
    "has_offset",
    "has_past",
    "has_softcap",
    "has_window",
    "left_windowed",
    "positioned",
    "right_windowed",
    "scaled_otherwise",
    "several_heads",
    "three_dimensional",
    "window_beyond_causal",
]

Applies = Callable[[AttentionSpec], bool]


def always(_: AttentionSpec) -> bool:
    """Every attention."""
    return True


def causal(spec: AttentionSpec) -> bool:
    """Causality holds."""
    return spec.is_causal


def positioned(spec: AttentionSpec) -> bool:
    """Who sees whom depends on positions."""
    return spec.is_causal or spec.has_window


def has_offset(spec: AttentionSpec) -> bool:
    """The first query's position may differ from 0."""
    return positioned(spec) and (spec.has_past or spec.mask is MaskKind.LENGTHS)


def has_mask(spec: AttentionSpec) -> bool:
    """A mask is an input, of either type."""
    return spec.mask in (MaskKind.BOOL, MaskKind.FLOAT)


def has_boolean_mask(spec: AttentionSpec) -> bool:
    """The mask is boolean."""
    return spec.mask is MaskKind.BOOL


def has_float_mask(spec: AttentionSpec) -> bool:
    """The mask is added."""
    return spec.mask is MaskKind.FLOAT


def has_lengths(spec: AttentionSpec) -> bool:
    """Lengths of the samples are an input."""
    return spec.mask is MaskKind.LENGTHS


def has_past(spec: AttentionSpec) -> bool:
    """A cache is an input."""
    return spec.has_past


def has_softcap(spec: AttentionSpec) -> bool:
    """The scores are capped."""
    return spec.softcap > 0


def capped_before_hiding(spec: AttentionSpec) -> bool:
    """The scores are capped and something hides keys."""
    return spec.softcap > 0 and (spec.mask is not MaskKind.NONE or positioned(spec))


def has_window(spec: AttentionSpec) -> bool:
    """A window on either side."""
    return spec.has_window


def window_beyond_causal(spec: AttentionSpec) -> bool:
    """A window that hides what causality does not."""
    return spec.left_window >= 0 or (spec.right_window >= 0 and not spec.is_causal)


def left_windowed(spec: AttentionSpec) -> bool:
    """A window to the left."""
    return spec.left_window >= 0


def right_windowed(spec: AttentionSpec) -> bool:
    """A window to the right that causality does not make void."""
    return spec.right_window >= 0 and not spec.is_causal


def three_dimensional(spec: AttentionSpec) -> bool:
    """Heads side by side in the last axis, more than one of them."""
    return spec.layout is Layout.BSH and spec.q_num_heads > 1


def several_heads(spec: AttentionSpec) -> bool:
    """More than one query head."""
    return spec.q_num_heads > 1


def grouped(spec: AttentionSpec) -> bool:
    """Several key/value heads, each for several query heads."""
    return 1 < spec.kv_num_heads < spec.q_num_heads


def scaled_otherwise(number: Callable[[AttentionSpec], float]) -> Applies:
    """The spec's scale is another than that number."""
    return lambda spec: not math.isclose(number(spec), spec.scale_value, rel_tol=1e-9)
