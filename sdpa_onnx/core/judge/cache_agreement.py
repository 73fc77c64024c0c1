"""Compares the key/value cache that an attention returns with its inputs; it is a copy, so it must be bit-equal.

Uses no tolerance and no oracle.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["judge_copy", "judge_present", "present_of"]

Array = NDArray[np.generic]


def judge_present(spec: AttentionSpec, inputs: AttentionInputs, outputs: Mapping[str, Array]) -> dict[str, Agreement]:
    """Compare present_key and present_value, if present, with the past followed by the new entries.

    Args:
        spec: The attention.
        inputs: The arrays that the runtime received; without a past nothing is compared.
        outputs: The runtime's outputs by name.

    Returns:
        One agreement per output name.
    """
    if inputs.past_key is None and inputs.past_value is None:
        return {}
    cache = present_of(spec, inputs)
    return {name: judge_copy(name, outputs[name], expected) for name, expected in cache.items() if name in outputs}


def present_of(spec: AttentionSpec, inputs: AttentionInputs) -> dict[str, Array]:
    """Return the expected cache by output name: the past, if there is one, followed by the new entries."""
    cache: dict[str, Array] = {}
    for field, width in (("key", spec.head_dim), ("value", spec.v_head_dim)):
        new: Array = getattr(inputs, field)
        if spec.layout is Layout.BSH:
            new = new.reshape(*new.shape[:2], spec.kv_num_heads, width).transpose(0, 2, 1, 3)
        past: Array | None = getattr(inputs, f"past_{field}")
        cache[f"present_{field}"] = new if past is None else np.concatenate([past, new], axis=2)
    return cache


def judge_copy(name: str, actual: Array, expected: Array) -> Agreement:
    """Compare one output that is a copy of inputs; NaN equals NaN.

    Args:
        name: Name of the output.
        actual: The runtime's output.
        expected: The expected array.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        got, needed = f"{actual.dtype.name} {actual.shape}", f"{expected.dtype.name} {expected.shape}"
        return Agreement(verdict=Verdict.WRONG, diagnosis=f"{name} is {got}, expected {needed}.")
    values, right = actual.astype(np.float64), expected.astype(np.float64)
    same = (values == right) | (np.isnan(values) & np.isnan(right))
    different = int(same.size - np.count_nonzero(same))
    both = np.isfinite(values) & np.isfinite(right)
    mismatch = f"not the past followed by the new entries: {different} of {same.size} elements differ"
    return Agreement(
        verdict=Verdict.WRONG if different else Verdict.OK,
        diagnosis=f"{name} is {mismatch if different else 'the past followed by the new entries'}.",
        max_abs_error=float(np.abs(np.where(both, values, 0.0) - np.where(both, right, 0.0)).max(initial=0.0)),
        mismatched=different,
        total=same.size,
    )
