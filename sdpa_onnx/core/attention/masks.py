"""Combines causality, windows, valid lengths and the mask into one additive attention bias.

The bias is 0 or a float where a query may attend and -inf where it may not.
Scores and softmax are not computed here; see `oracle`.
"""

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["attn_bias", "causal_offset", "views_by_kv_head", "visible_keys"]

Float64 = NDArray[np.float64]
Rows = NDArray[np.int64]
Bool = NDArray[np.bool_]


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


def visible_keys(spec: AttentionSpec, inputs: AttentionInputs) -> Bool:
    """Which keys each query sees: (batch_size, q_num_heads, or 1 if all see the same, q_seq_len, total_seq_len)."""
    axis, mask = spec.layout.length_axis, inputs.attn_mask
    q_seq_len, keys = inputs.query.shape[axis], inputs.key.shape[axis]
    total = keys + (0 if inputs.past_key is None else inputs.past_key.shape[2])
    heads = spec.q_num_heads if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1 else 1
    visible = np.zeros((inputs.query.shape[0], heads, q_seq_len, total), dtype=bool)
    rows = np.arange(q_seq_len)
    for batch, head in np.ndindex(visible.shape[:2]):
        bias = attn_bias(spec, inputs, batch=batch, head=head, rows=rows, q_seq_len=q_seq_len, total_seq_len=total)
        visible[batch, head] = ~np.isneginf(bias)
    return visible


def views_by_kv_head(spec: AttentionSpec, inputs: AttentionInputs) -> Rows:
    """How many queries, of all heads that share it, see each key: (batch_size, kv_num_heads, total_seq_len)."""
    visible = visible_keys(spec, inputs)
    samples, _, queries, total = visible.shape
    every = np.broadcast_to(visible, (samples, spec.q_num_heads, queries, total))
    groups = every.reshape(samples, spec.kv_num_heads, spec.heads_per_kv * queries, total)
    views: Rows = groups.sum(axis=2, dtype=np.int64)
    return views


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
