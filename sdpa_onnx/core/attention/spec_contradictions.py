"""Find where the spec that a file states and the spec that was read from its nodes cannot both be true.

Compares specs only. What a reading cannot know is no contradiction: a window that is written as a mask, repeated key
heads, keys that were joined with a cache.
"""

import math

from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind

__all__ = ["spec_contradictions"]

# Files store scales and caps as float32; decomposed ones store a square root. Source: IEEE 754, 23 bits of fraction.
_FLOAT32_STEPS = 4 * 2.0**-23


def spec_contradictions(stated: AttentionSpec, read: AttentionSpec) -> tuple[str, ...]:
    """Name each contradiction, such as "scale 0.1768 in the metadata, 0.18 in the nodes".

    Args:
        stated: What the file states.
        read: What its nodes compute.

    Example:
        >>> spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)
        >>> spec_contradictions(spec, AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, softcap=5.0))
        ('softcap 0 in the metadata, 5 in the nodes',)
    """
    found: list[str] = []
    for name in ("q_num_heads", "kv_num_heads", "head_dim", "v_head_dim"):
        was, now = getattr(stated, name), getattr(read, name)
        is_repeated = name == "kv_num_heads" and now == read.q_num_heads
        found += [_pair(name, was, now)] if was != now and not is_repeated else []
    for name in ("scale_value", "softcap"):
        was, now = getattr(stated, name), getattr(read, name)
        if not math.isclose(was, now, rel_tol=_FLOAT32_STEPS):
            found.append(_pair(name.removesuffix("_value"), f"{was:.6g}", f"{now:.6g}"))
    return (*found, *_hidden(stated, read))


def _hidden(stated: AttentionSpec, read: AttentionSpec) -> list[str]:
    """Contradictions about the keys that a query does not see."""
    if read.mask is not MaskKind.NONE:
        # A mask in the nodes may be the window, the padding or the causal part that the file states.
        explained = stated.mask is not MaskKind.NONE or stated.has_window or stated.is_causal
        return [] if explained else [_pair("mask", stated.mask.value, read.mask.value)]
    if stated.mask is not MaskKind.NONE:
        return []  # the nodes may have written it as causality and windows, or in a form of their own
    (was_left, was_right), (left, right) = _sides(stated), _sides(read)
    found = [_pair("left window", was_left, left)] if was_left != left else []
    if was_right == right:
        return found
    if {was_right, right} == {-1, 0}:
        return [*found, _pair("causal", _yes(was_right == 0), _yes(right == 0))]
    return [*found, _pair("right window", was_right, right)]


def _sides(spec: AttentionSpec) -> tuple[int, int]:
    """Keys visible on the left and on the right; causal is a right window of 0."""
    return spec.left_window, 0 if spec.is_causal else spec.right_window


def _yes(value: bool) -> str:  # noqa: FBT001  # a private word for a flag
    return "yes" if value else "no"


def _pair(name: str, was: object, now: object) -> str:
    return f"{name} {was} in the metadata, {now} in the nodes"
