"""Name what a runtime does on a disputed point, whether that is right or wrong.

Looks at outputs only; the words are those of `ConformanceRecord.observed`.
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

# None of the known outcomes.
OTHER = "none of the known"


def observe(
    feature: Feature, posed: OperatorCase, actual: Array, precision: Precision, *, is_right: bool
) -> tuple[str, ...]:
    """Say which of the known outcomes an output shows: all that fit it, `OTHER` if none; () where nothing is disputed.

    Args:
        feature: What is disputed.
        posed: The case.
        actual: The output.
        precision: The arithmetic that it is judged in.
        is_right: Whether the oracle's own outcome fits; it is then the one named.
    """
    match feature.point:
        case DisputedPoint.NONE:
            return ()
        case DisputedPoint.ALIGNMENT:
            aligned = aligned_inputs(posed.spec, posed.inputs)
            if is_right and not feature.alignments:
                return (next(iter(aligned)),)
            fits = [word for word, inputs in aligned.items() if _fits(masked_spec(posed), inputs, actual, precision)]
            return tuple(fits) or (OTHER,)
        case DisputedPoint.NAN:
            return (_nan_outcome(actual, is_right=is_right),)
        case DisputedPoint.NEGATIVE_SCALE:
            return ("nan" if np.isnan(actual.astype(np.float64)).all() else "applied" if is_right else OTHER,)
        case DisputedPoint.MASKED_ROW | DisputedPoint.LOWEST_ROW:
            return _row_outcome(feature, posed, actual, precision)


def _nan_outcome(actual: Array, *, is_right: bool) -> str:
    if np.isnan(actual.astype(np.float64)).any():
        return "propagates"
    if is_right:
        return "shielded"
    return "becomes zero" if (actual == 0).any() else OTHER


def aligned_inputs(spec: AttentionSpec, inputs: AttentionInputs) -> dict[str, AttentionInputs]:
    """The inputs with each causal alignment written out as a mask, by its word, the oracle's own first.

    They are for the same spec without causality.
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
    found = {}
    for word, offset in offsets.items():
        seen = keys <= rows + offset.reshape(-1, 1, 1, 1)
        found[word] = replace(inputs, attn_mask=_combined(inputs.attn_mask, seen, total))
    return found


def _combined(mask: Array | None, seen: NDArray[np.bool_], total: int) -> Array:
    if mask is None:
        return seen
    missing = [(0, 0)] * (mask.ndim - 1) + [(0, total - mask.shape[-1])]
    if mask.dtype == np.bool_:
        return np.pad(mask.astype(bool), missing) & seen
    wide = np.pad(mask.astype(np.float64), missing, constant_values=-np.inf)
    return np.where(seen, wide, -np.inf)


def masked_spec(posed: OperatorCase) -> AttentionSpec:
    """The spec that `aligned_inputs` are for; the oracle reads masks and lengths off the inputs."""
    return replace(posed.spec, is_causal=False)


def _fits(spec: AttentionSpec, inputs: AttentionInputs, actual: Array, precision: Precision) -> bool:
    verdict = judge(expect(spec, inputs, precision=precision), actual).verdict
    return verdict is not Verdict.WRONG


def _row_outcome(feature: Feature, posed: OperatorCase, actual: Array, precision: Precision) -> tuple[str, ...]:
    """What stands in the rows that see nothing, or only the lowest number."""
    rows = _rows_in_question(feature, posed)
    if not rows.any():
        return ()
    output = _heads_first(posed.spec, actual).astype(np.float64)
    picked = output[rows]
    if np.isnan(picked).any():
        return ("nan",)
    if not picked.any():
        return ("zero",)
    for word, (spec, inputs) in _row_readings(posed).items():
        right = attend(spec, inputs).output
        patched = np.where(rows[..., None], output, _heads_first(spec, right))
        if _fits(spec, inputs, _as_layout(spec, patched).astype(actual.dtype), precision):
            return (word,)
    return (OTHER,)


def _row_readings(posed: OperatorCase) -> dict[str, tuple[AttentionSpec, AttentionInputs]]:
    """What else than zero may stand in such a row, by its word."""
    spec, inputs = posed.spec, posed.inputs
    open_spec = replace(spec, is_causal=False, mask=MaskKind.NONE, left_window=-1, right_window=-1)
    unmasked = replace(inputs, attn_mask=None, nonpad_kv_seqlen=None)
    found = {
        "mean-of-values": (open_spec, replace(unmasked, query=np.zeros_like(inputs.query))),
        "unmasked": (open_spec, unmasked),
    }
    if spec.is_causal:
        found["mask-ignored"] = (replace(spec, mask=MaskKind.NONE), unmasked)
        found["causal-ignored"] = (replace(spec, is_causal=False), inputs)
    return found


def _rows_in_question(feature: Feature, posed: OperatorCase) -> NDArray[np.bool_]:
    """(batch_size, q_num_heads, q_seq_len)."""
    visible = visible_pairs(posed.spec, posed.inputs)
    mask = posed.inputs.attn_mask
    if feature.point is DisputedPoint.MASKED_ROW or mask is None:
        return np.asarray(~visible.any(-1))
    full = np.broadcast_to(mask.reshape((1,) * (4 - mask.ndim) + mask.shape), visible.shape)
    hidden = full.astype(np.float64) if mask.dtype != np.bool_ else np.zeros(full.shape)
    # Random numbers of a mask never come near the number that these rows are filled with.
    return np.asarray((hidden < -100.0).all(-1) & visible.any(-1))


def _heads_first(spec: AttentionSpec, output: Array) -> Array:
    if spec.layout is Layout.BNSH:
        return output
    return output.reshape(*output.shape[:2], spec.q_num_heads, spec.v_head_dim).transpose(0, 2, 1, 3)


def _as_layout(spec: AttentionSpec, output: Array) -> Array:
    if spec.layout is Layout.BNSH:
        return output
    return output.transpose(0, 2, 1, 3).reshape(output.shape[0], output.shape[2], spec.q_num_heads * spec.v_head_dim)
