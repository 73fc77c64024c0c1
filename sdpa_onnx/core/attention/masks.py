"""Combines causality, windows, valid lengths and the mask into one additive attention bias.

The bias is 0 or a float where a query may attend and -inf where it may not.
Scores and softmax are not computed here; see `oracle`.
"""

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["attn_bias", "causal_offset"]

Float64 = NDArray[np.float64]
Rows = NDArray[np.int64]


def causal_offset(inputs: AttentionInputs, *, batch: int, q_seq_len: int) -> int:
    """Number of valid keys before the first query of a sample.

    The past length with a cache input; nonpad_kv_seqlen - q_seq_len with an external
    cache (if negative, the first queries have no visible key); 0 without either.

    Source: ONNX Attention, opset 25, "offset" (alignment by onnx PR 8068).
    """
    if inputs.past_key is not None:
        return int(inputs.past_key.shape[2])
    if inputs.nonpad_kv_seqlen is not None:
        return int(inputs.nonpad_kv_seqlen[batch]) - q_seq_len
    return 0


def attn_bias(
    spec: AttentionSpec,
    inputs: AttentionInputs,
    *,
    batch: int,
    head: int,
    rows: Rows,
    q_seq_len: int,
    total_seq_len: int,
) -> Float64:
    """Combine all visibility rules into one additive bias.

    Args:
        spec: Causality and windows.
        inputs: Masks and lengths.
        batch: Sample.
        head: Query head.
        rows: (n,), indices of the queries to compute.
        q_seq_len: Queries of the sample.
        total_seq_len: Keys, past and new.

    Returns:
        (n, total_seq_len), float64, added to the scores after the softcap.

    Source: ONNX Attention, opset 25: causal j <= i + offset; window
        offset + i - left <= j <= offset + i + right; padding j < nonpad_kv_seqlen.
    """
    keys = np.arange(total_seq_len)
    position = rows[:, None] + causal_offset(inputs, batch=batch, q_seq_len=q_seq_len)
    visible = np.ones((rows.size, total_seq_len), dtype=bool)
    if spec.is_causal:
        visible &= keys <= position
    if spec.left_window >= 0:
        visible &= keys >= position - spec.left_window
    if spec.right_window >= 0:
        visible &= keys <= position + spec.right_window
    if inputs.nonpad_kv_seqlen is not None:
        visible &= keys < int(inputs.nonpad_kv_seqlen[batch])
    bias = np.where(visible, 0.0, -np.inf)
    if inputs.attn_mask is not None:
        bias += _mask_rows(inputs.attn_mask, batch, head, rows, total_seq_len)
    return bias


def _mask_rows(mask: NDArray[np.generic], batch: int, head: int, rows: Rows, total_seq_len: int) -> Float64:
    """Select one head's rows of a mask that broadcasts from the right; pad its last axis with -inf."""
    full = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    picked = full[batch if full.shape[0] > 1 else 0, head if full.shape[1] > 1 else 0]
    picked = picked[rows] if picked.shape[0] > 1 else np.broadcast_to(picked, (rows.size, picked.shape[1]))
    added = np.where(picked, 0.0, -np.inf) if picked.dtype == np.bool_ else picked.astype(np.float64)
    missing = total_seq_len - added.shape[1]
    if missing > 0:
        added = np.concatenate([added, np.full((rows.size, missing), -np.inf)], axis=1)
    return added
