"""Classify what a runtime does on a disputed point, such as a fully masked row or the causal alignment.

Reads outputs only; the names are the values of `ConformanceRecord.observed`. Does not decide right or wrong.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import attend, split_heads
from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout, MaskKind
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.workflows.conformance.feature import DisputedPoint, Feature
from sdpa_onnx.workflows.conformance.judging import visible_pairs
from sdpa_onnx.workflows.conformance.operators import OperatorCase

__all__ = ["OTHER", "aligned_inputs", "masked_spec", "observe"]

Array = NDArray[np.generic]

# The output matches none of the known outcomes.
OTHER = "none of the known"


def observe(
    feature: Feature, operator_case: OperatorCase, actual: Array, precision: Precision, *, is_right: bool
) -> tuple[str, ...]:
    """Name the known outcomes that match an output.

    Args:
        feature: The feature, with its disputed point.
        operator_case: The case.
        actual: The output.
        precision: The arithmetic for which it is judged.
        is_right: Whether the oracle's own outcome matches; then only that one is named.

    Returns:
        Every matching outcome, `OTHER` if none matches, () if the feature has no disputed point.
    """
    match feature.point:
        case DisputedPoint.NONE:
            return ()
        case DisputedPoint.ALIGNMENT:
            aligned = aligned_inputs(operator_case.spec, operator_case.inputs)
            if is_right and not feature.alignments:
                return (next(iter(aligned)),)
            spec = masked_spec(operator_case)
            matches = [name for name, inputs in aligned.items() if _matches(spec, inputs, actual, precision)]
            return tuple(matches) or (OTHER,)
        case DisputedPoint.NAN:
            return (_nan_outcome(actual, is_right=is_right),)
        case DisputedPoint.NEGATIVE_SCALE:
            return ("nan" if np.isnan(actual.astype(np.float64)).all() else "applied" if is_right else OTHER,)
        case DisputedPoint.MASKED_ROW | DisputedPoint.LOWEST_ROW:
            return _row_outcome(feature, operator_case, actual, precision)


def _nan_outcome(actual: Array, *, is_right: bool) -> str:
    if np.isnan(actual.astype(np.float64)).any():
        return "propagates"
    if is_right:
        return "shielded"
    return "becomes zero" if (actual == 0).any() else OTHER


def aligned_inputs(spec: AttentionSpec, inputs: AttentionInputs) -> dict[str, AttentionInputs]:
    """The inputs with each causal alignment as an explicit mask, by name, the oracle's own first.

    They belong to `masked_spec`, the same spec with is_causal=False.
    """
    query, key, _ = split_heads(spec, inputs)
    q_seq_len, total = query.shape[2], key.shape[2]
    past = 0 if inputs.past_key is None else inputs.past_key.shape[2]
    offsets: dict[str, NDArray[np.int64]] = {}
    if inputs.nonpad_kv_seqlen is not None:
        offsets["nonpad"] = inputs.nonpad_kv_seqlen.astype(np.int64) - q_seq_len
    if past:
        offsets["past"] = np.array([past])
    offsets |= {
        "upper-left": np.array([0]),
        "bottom-right": np.array([total - q_seq_len]),
        "all-keys": np.array([total]),
    }
    keys, rows = np.arange(total), np.arange(q_seq_len)[:, None]
    aligned = {}
    for name, offset in offsets.items():
        visible = keys <= rows + offset.reshape(-1, 1, 1, 1)
        aligned[name] = replace(inputs, attn_mask=_combined(inputs.attn_mask, visible, total))
    return aligned


def _combined(mask: Array | None, visible: NDArray[np.bool_], total: int) -> Array:
    if mask is None:
        return visible
    padding = [(0, 0)] * (mask.ndim - 1) + [(0, total - mask.shape[-1])]
    if mask.dtype == np.bool_:
        return np.pad(mask.astype(bool), padding) & visible
    wide = np.pad(mask.astype(np.float64), padding, constant_values=-np.inf)
    return np.where(visible, wide, -np.inf)


def masked_spec(operator_case: OperatorCase) -> AttentionSpec:
    """The spec of `aligned_inputs`: not causal; the oracle takes masks and lengths from the inputs."""
    return replace(operator_case.spec, is_causal=False)


def _matches(spec: AttentionSpec, inputs: AttentionInputs, actual: Array, precision: Precision) -> bool:
    verdict = judge(expect(spec, inputs, precision=precision), actual).verdict
    return verdict is not Verdict.WRONG


def _row_outcome(feature: Feature, operator_case: OperatorCase, actual: Array, precision: Precision) -> tuple[str, ...]:
    """Classify the output of fully masked rows, or of rows whose mask is the lowest finite number."""
    rows = _disputed_rows(feature, operator_case)
    if not rows.any():
        return ()
    output = _heads_first(operator_case.spec, actual).astype(np.float64)
    picked = output[rows]
    if np.isnan(picked).any():
        return ("nan",)
    if not picked.any():
        return ("zero",)
    for name, (spec, inputs) in _row_readings(operator_case).items():
        oracle = attend(spec, inputs).output
        patched = np.where(rows[..., None], output, _heads_first(spec, oracle))
        if _matches(spec, inputs, _as_layout(spec, patched).astype(actual.dtype), precision):
            return (name,)
    return (OTHER,)


def _row_readings(operator_case: OperatorCase) -> dict[str, tuple[AttentionSpec, AttentionInputs]]:
    """The outcomes other than zero and NaN that such a row may have, by name."""
    spec, inputs = operator_case.spec, operator_case.inputs
    unmasked_spec = replace(spec, is_causal=False, mask=MaskKind.NONE, left_window=-1, right_window=-1)
    unmasked = replace(inputs, attn_mask=None, nonpad_kv_seqlen=None)
    readings = {
        "mean-of-values": (unmasked_spec, replace(unmasked, query=np.zeros_like(inputs.query))),
        "unmasked": (unmasked_spec, unmasked),
    }
    if spec.is_causal:
        readings["mask-ignored"] = (replace(spec, mask=MaskKind.NONE), unmasked)
        readings["causal-ignored"] = (replace(spec, is_causal=False), inputs)
    return readings


def _disputed_rows(feature: Feature, operator_case: OperatorCase) -> NDArray[np.bool_]:
    """(batch_size, q_num_heads, q_seq_len): True for the rows on which runtimes differ."""
    visible = visible_pairs(operator_case.spec, operator_case.inputs)
    mask = operator_case.inputs.attn_mask
    if feature.point is DisputedPoint.MASKED_ROW or mask is None:
        return np.asarray(~visible.any(-1))
    full = np.broadcast_to(mask.reshape((1,) * (4 - mask.ndim) + mask.shape), visible.shape)
    additive = full.astype(np.float64) if mask.dtype != np.bool_ else np.zeros(full.shape)
    # The random numbers of a mask are never near the number that fills these rows.
    return np.asarray((additive < -100.0).all(-1) & visible.any(-1))


def _heads_first(spec: AttentionSpec, output: Array) -> Array:
    if spec.layout is Layout.BNSH:
        return output
    return output.reshape(*output.shape[:2], spec.q_num_heads, spec.v_head_dim).transpose(0, 2, 1, 3)


def _as_layout(spec: AttentionSpec, output: Array) -> Array:
    if spec.layout is Layout.BNSH:
        return output
    return output.transpose(0, 2, 1, 3).reshape(output.shape[0], output.shape[2], spec.q_num_heads * spec.v_head_dim)
