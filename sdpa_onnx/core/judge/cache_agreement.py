"""Compares the key/value cache that an attention returns with its inputs; it is a copy, so it must be bit-equal.

A runtime that declares a format with fewer digits than the inputs have may round the copy once to that format. An
operator that rotates or projects new entries itself may round them as much as that sum can. Uses no other tolerance and
no oracle.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import FloatFormat, Precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.judge.block_bound import gamma
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["CacheRule", "judge_cache", "judge_copy", "present_of"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]

_ROUNDED_TO = {
    FloatFormat.FLOAT32: np.dtype(np.float32),
    FloatFormat.FLOAT16: np.dtype(np.float16),
    FloatFormat.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRule:
    """What an operator defines of its present outputs; by default every entry, as a copy.

    Args:
        lengths: (batch_size,), the entries of each sample that are defined; None = all. Further ones hold anything,
            and the output may be longer.
        terms: Roundings of a new entry that the operator computes itself; 0 = it copies the new entries.
        magnitudes: (batch_size, new, columns), for each column of new keys and then values the sum of the magnitudes
            of the terms that it is computed from; None = new keys are rotated, so that no rotation of two columns
            is larger than the norm of the head, and values are copied.
    """

    lengths: Array | None = None
    terms: int = 0
    magnitudes: Array | None = None


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


def judge_cache(
    role: OutputRole,
    spec: AttentionSpec,
    inputs: AttentionInputs,
    actual: Array,
    *,
    precision: Precision,
    rule: CacheRule,
) -> Agreement:
    """Compare one present output with the past followed by the new entries.

    Args:
        role: Which of them.
        spec: The attention.
        inputs: The arrays that the runtime received.
        actual: The runtime's output.
        precision: The declared arithmetic.
        rule: What the operator defines of it.
    """
    expected = present_of(spec, inputs).get(role)
    if expected is None:
        return Agreement(verdict=Verdict.WRONG, diagnosis=f"{role} cannot hold keys and values of different widths.")
    slack = _slack(role, spec, inputs, expected, precision, rule) if rule.terms else None
    if rule.lengths is not None:
        defined = rule.lengths.astype(np.int64)
        if actual.ndim == expected.ndim and actual.shape[-2] >= int(defined.max(initial=0)):
            kept = min(actual.shape[-2], expected.shape[-2])
            actual, expected = actual[..., :kept, :], expected[..., :kept, :]
            slack = None if slack is None else slack[..., :kept, :]
            if actual.shape == expected.shape:
                inside = np.arange(kept) < defined[:, None]
                actual = np.where(inside[:, None, :, None], actual, expected)
    return judge_copy(role, actual, expected, precision.output, slack)


def _slack(
    role: OutputRole,
    spec: AttentionSpec,
    inputs: AttentionInputs,
    expected: Array,
    precision: Precision,
    rule: CacheRule,
) -> Float64:
    """Largest difference of two computations of the new entries, 0 for the past: of the shape of `expected`.

    Both the operator and the nodes that stand in for it round each term once and each partial sum once.
    """
    unit = max(float(ml_dtypes.finfo(expected.dtype).eps) / 2.0, precision.output.unit_roundoff)  # type: ignore[no-untyped-call]
    if precision.operand is not None:
        unit = max(unit, 2.0 * precision.operand.unit_roundoff)
    factor = 2.0 * float(np.asarray(gamma(np.asarray(float(rule.terms)), unit)))
    wide = expected.astype(np.float64)
    slack = np.zeros_like(wide)
    past = 0 if inputs.past_key is None else inputs.past_key.shape[2]
    if rule.magnitudes is None:
        if role is OutputRole.PRESENT_KEY:
            slack[..., past:, :] = factor * np.sqrt((wide * wide).sum(-1, keepdims=True))[..., past:, :]
        return slack
    sums = rule.magnitudes.astype(np.float64)
    widths = spec.kv_num_heads * spec.head_dim, spec.kv_num_heads * spec.v_head_dim
    key, value = sums[..., -sum(widths) : -widths[1]], sums[..., -widths[1] :]
    new = AttentionInputs(query=inputs.query, key=key, value=value)
    slack[..., past:, :] = factor * present_of(spec, new)[role].astype(np.float64)
    return slack


def judge_copy(
    name: str, actual: Array, expected: Array, stored: FloatFormat | None = None, slack: Float64 | None = None
) -> Agreement:
    """Compare one output that is a copy of inputs; NaN equals NaN.

    Args:
        name: Name of the output.
        actual: The runtime's output.
        expected: The expected array.
        stored: The declared format of the runtime; where it has fewer digits than `expected`, a copy that is
            rounded to it is right too. None = only equal bits are right.
        slack: Largest difference of each element that the operator computes; None = all are copied.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        got, needed = f"{actual.dtype.name} {actual.shape}", f"{expected.dtype.name} {expected.shape}"
        return Agreement(verdict=Verdict.WRONG, diagnosis=f"{name} is {got}, expected {needed}.")
    with np.errstate(invalid="ignore"):  # signalling NaN
        values, right = actual.astype(np.float64), expected.astype(np.float64)
    different, how = _differing(values, right, None), ""
    if different and slack is not None:
        different = _differing(values, right, slack)
        how = "" if different else ", the new ones within the rounding of their computation"
    coarser = _coarser(expected.dtype, stored)
    if different and coarser is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = right.astype(coarser).astype(np.float64)
        if not _differing(values, rounded, slack):
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


def _differing(values: Float64, right: Float64, slack: Float64 | None) -> int:
    same = (values == right) | (np.isnan(values) & np.isnan(right))
    if slack is not None:
        with np.errstate(invalid="ignore"):
            same |= np.abs(values - right) <= slack
    return int(same.size - np.count_nonzero(same))


def _coarser(dtype: np.dtype[np.generic], stored: FloatFormat | None) -> np.dtype[np.generic] | None:
    """The type of the declared format, if it has fewer digits than the array's own type."""
    rounded = None if stored is None else _ROUNDED_TO.get(stored)
    if rounded is None or stored is None:
        return None
    own = float(ml_dtypes.finfo(dtype).eps) / 2.0  # type: ignore[no-untyped-call]
    return rounded if own < stored.unit_roundoff else None
