"""Named conditions on a spec: for which attentions an alternative reading or a fault can change the output.

Sizes and values are not checked: with an empty past, or a single sample, two readings can still be equal.
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
    "several_kv_heads",
    "three_dimensional",
    "window_beyond_causal",
]

Applies = Callable[[AttentionSpec], bool]


def always(_: AttentionSpec) -> bool:
    """Every attention."""
    return True


def causal(spec: AttentionSpec) -> bool:
    """The attention is causal."""
    return spec.is_causal


def positioned(spec: AttentionSpec) -> bool:
    """Visibility of keys depends on positions."""
    return spec.is_causal or spec.has_window


def has_offset(spec: AttentionSpec) -> bool:
    """The first query's position may differ from 0."""
    return positioned(spec) and (spec.has_past or spec.mask is MaskKind.LENGTHS)


def has_mask(spec: AttentionSpec) -> bool:
    """A boolean or float mask is an input."""
    return spec.mask in (MaskKind.BOOL, MaskKind.FLOAT)


def has_boolean_mask(spec: AttentionSpec) -> bool:
    """The mask is boolean."""
    return spec.mask is MaskKind.BOOL


def has_float_mask(spec: AttentionSpec) -> bool:
    """The mask is a float mask, added to the scores."""
    return spec.mask is MaskKind.FLOAT


def has_lengths(spec: AttentionSpec) -> bool:
    """Valid lengths of the samples (`nonpad_kv_seqlen`) are an input."""
    return spec.mask is MaskKind.LENGTHS


def has_past(spec: AttentionSpec) -> bool:
    """A key/value cache is an input."""
    return spec.has_past


def has_softcap(spec: AttentionSpec) -> bool:
    """A softcap is applied to the scores."""
    return spec.softcap > 0


def capped_before_hiding(spec: AttentionSpec) -> bool:
    """A softcap is applied, and a mask, causality or a window hides keys."""
    return spec.softcap > 0 and (spec.mask is not MaskKind.NONE or positioned(spec))


def has_window(spec: AttentionSpec) -> bool:
    """There is a window on either side."""
    return spec.has_window


def window_beyond_causal(spec: AttentionSpec) -> bool:
    """A window hides keys that causality does not hide."""
    return spec.left_window >= 0 or (spec.right_window >= 0 and not spec.is_causal)


def left_windowed(spec: AttentionSpec) -> bool:
    """There is a left window."""
    return spec.left_window >= 0


def right_windowed(spec: AttentionSpec) -> bool:
    """There is a right window, and causality does not make it redundant."""
    return spec.right_window >= 0 and not spec.is_causal


def three_dimensional(spec: AttentionSpec) -> bool:
    """The layout is 3-D with more than one head in the last axis."""
    return spec.layout is Layout.BSH and spec.q_num_heads > 1


def several_heads(spec: AttentionSpec) -> bool:
    """There is more than one query head."""
    return spec.q_num_heads > 1


def several_kv_heads(spec: AttentionSpec) -> bool:
    """Whether there are several key and value heads."""
    return spec.kv_num_heads > 1


def grouped(spec: AttentionSpec) -> bool:
    """Grouped-query attention with more than one key/value head."""
    return 1 < spec.kv_num_heads < spec.q_num_heads


def scaled_otherwise(number: Callable[[AttentionSpec], float]) -> Applies:
    """The spec's scale differs from this number."""
    return lambda spec: not math.isclose(number(spec), spec.scale_value, rel_tol=1e-9)
