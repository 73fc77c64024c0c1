"""The judge of the cache that an attention gives back: it is copied, so it is equal to the last bit or wrong."""

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
    """Judge present_key and present_value, where they are there: the past followed by the new ones.

    Args:
        spec: What is computed.
        inputs: The arrays that the runtime got; without a past nothing is judged.
        outputs: What it gave, by name.
    """
    if inputs.past_key is None and inputs.past_value is None:
        return {}
    wanted = present_of(spec, inputs)
    return {name: judge_copy(name, outputs[name], expected) for name, expected in wanted.items() if name in outputs}


def present_of(spec: AttentionSpec, inputs: AttentionInputs) -> dict[str, Array]:
    """The cache that a right runtime gives back, by output name: the past, if there is one, and the new ones."""
    found: dict[str, Array] = {}
    for field, width in (("key", spec.head_dim), ("value", spec.v_head_dim)):
        new: Array = getattr(inputs, field)
        if spec.layout is Layout.BSH:
            new = new.reshape(*new.shape[:2], spec.kv_num_heads, width).transpose(0, 2, 1, 3)
        past: Array | None = getattr(inputs, f"past_{field}")
        found[f"present_{field}"] = new if past is None else np.concatenate([past, new], axis=2)
    return found


def judge_copy(name: str, actual: Array, expected: Array) -> Agreement:
    """Judge one output that is copied from the inputs; NaN equals NaN.

    Args:
        name: Of the output.
        actual: What the runtime gave.
        expected: What it must be.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        got, wanted = f"{actual.dtype.name} {actual.shape}", f"{expected.dtype.name} {expected.shape}"
        return Agreement(verdict=Verdict.WRONG, diagnosis=f"{name} is {got}, expected {wanted}.")
    given, right = actual.astype(np.float64), expected.astype(np.float64)
    same = (given == right) | (np.isnan(given) & np.isnan(right))
    different = int(same.size - np.count_nonzero(same))
    both = np.isfinite(given) & np.isfinite(right)
    says = f"not the past followed by the new ones: {different} of {same.size} elements differ"
    return Agreement(
        verdict=Verdict.WRONG if different else Verdict.OK,
        diagnosis=f"{name} is {says if different else 'the past followed by the new ones'}.",
        max_abs_error=float(np.abs(np.where(both, given, 0.0) - np.where(both, right, 0.0)).max(initial=0.0)),
        mismatched=different,
        total=same.size,
    )
