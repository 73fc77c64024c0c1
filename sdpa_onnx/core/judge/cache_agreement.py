"""Compares the key/value cache that an attention returns with its inputs; it is a copy, so it must be bit-equal.

A runtime that declares a format with fewer digits than the inputs have may round the copy once to that format. Uses no
other tolerance and no oracle.
"""

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import FloatFormat
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["judge_copy", "present_of"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]

_ROUNDED_TO = {
    FloatFormat.FLOAT32: np.dtype(np.float32),
    FloatFormat.FLOAT16: np.dtype(np.float16),
    FloatFormat.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


def present_of(spec: AttentionSpec, inputs: AttentionInputs) -> dict[OutputRole, Array]:
    """Return the expected caches: the past, if there is one, followed by the new entries; PRESENT where they fit."""
    cache: dict[OutputRole, Array] = {}
    for role, field, width in (
        (OutputRole.PRESENT_KEY, "key", spec.head_dim),
        (OutputRole.PRESENT_VALUE, "value", spec.v_head_dim),
    ):
        new: Array = getattr(inputs, field)
        if spec.layout is Layout.BSH:
            new = new.reshape(*new.shape[:2], spec.kv_num_heads, width).transpose(0, 2, 1, 3)
        past: Array | None = getattr(inputs, f"past_{field}")
        cache[role] = new if past is None else np.concatenate([past, new], axis=2)
    key, value = cache.values()
    if key.shape == value.shape:
        cache[OutputRole.PRESENT] = np.stack([key, value])
    return cache


def judge_copy(name: str, actual: Array, expected: Array, stored: FloatFormat | None = None) -> Agreement:
    """Compare one output that is a copy of inputs; NaN equals NaN.

    Args:
        name: Name of the output.
        actual: The runtime's output.
        expected: The expected array.
        stored: The declared format of the runtime; where it has fewer digits than `expected`, a copy that is
            rounded to it is right too. None = only equal bits are right.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        got, needed = f"{actual.dtype.name} {actual.shape}", f"{expected.dtype.name} {expected.shape}"
        return Agreement(verdict=Verdict.WRONG, diagnosis=f"{name} is {got}, expected {needed}.")
    with np.errstate(invalid="ignore"):  # signalling NaN
        values, right = actual.astype(np.float64), expected.astype(np.float64)
    different, how = _differing(values, right), ""
    coarser = _coarser(expected.dtype, stored)
    if different and coarser is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = right.astype(coarser).astype(np.float64)
        if not _differing(values, rounded):
            different, how = 0, f", rounded once to {coarser.name}, the arithmetic that the runtime declares"
    both = np.isfinite(values) & np.isfinite(right)
    mismatch = f"not the past followed by the new entries: {different} of {values.size} elements differ"
    return Agreement(
        verdict=Verdict.WRONG if different else Verdict.OK,
        diagnosis=f"{name} is {mismatch if different else f'the past followed by the new entries{how}'}.",
        max_abs_error=float(np.abs(np.where(both, values, 0.0) - np.where(both, right, 0.0)).max(initial=0.0)),
        mismatched=different,
        total=values.size,
    )


def _differing(values: Float64, right: Float64) -> int:
    same = (values == right) | (np.isnan(values) & np.isnan(right))
    return int(same.size - np.count_nonzero(same))


def _coarser(dtype: np.dtype[np.generic], stored: FloatFormat | None) -> np.dtype[np.generic] | None:
    """The type of the declared format, if it has fewer digits than the array's own type."""
    rounded = None if stored is None else _ROUNDED_TO.get(stored)
    if rounded is None or stored is None:
        return None
    own = float(ml_dtypes.finfo(dtype).eps) / 2.0  # type: ignore[no-untyped-call]
    return rounded if own < stored.unit_roundoff else None
