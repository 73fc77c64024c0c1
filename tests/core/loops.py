"""Attention as three nested loops over Python floats: the second opinion on the oracle.

Written from the operator's text, not from `core`; it shares no line with it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout

Array = NDArray[np.generic]

HIDDEN = -math.inf


def attend_by_loops(spec: AttentionSpec, inputs: AttentionInputs) -> NDArray[np.float64]:
    """Output of attention, one element after the other, in the spec's layout."""
    group = spec.q_num_heads // spec.kv_num_heads
    queries = heads(inputs.query, spec.q_num_heads, spec.layout)
    keys = heads(inputs.key, spec.kv_num_heads, spec.layout)
    values = heads(inputs.value, spec.kv_num_heads, spec.layout)
    if inputs.past_key is not None and inputs.past_value is not None:
        keys = np.concatenate([inputs.past_key.astype(float), keys], axis=2)
        values = np.concatenate([inputs.past_value.astype(float), values], axis=2)
    batch_size, _, q_seq_len, _ = queries.shape
    result = np.zeros((batch_size, spec.q_num_heads, q_seq_len, spec.v_head_dim))
    for b in range(batch_size):
        for h in range(spec.q_num_heads):
            for i in range(q_seq_len):
                key, value = keys[b, h // group].tolist(), values[b, h // group].tolist()
                logits = [
                    logit(spec, inputs, queries[b, h, i].tolist(), key[j], (b, h, i, j), q_seq_len)
                    for j in range(len(key))
                ]
                result[b, h, i] = average(logits, value, spec.v_head_dim)
    if spec.layout is Layout.BNSH:
        return result
    flat = np.zeros((batch_size, q_seq_len, spec.q_num_heads * spec.v_head_dim))
    for h in range(spec.q_num_heads):
        flat[:, :, h * spec.v_head_dim : (h + 1) * spec.v_head_dim] = result[:, h]
    return flat


def heads(array: Array, count: int, layout: Layout) -> NDArray[np.float64]:
    """(batch, head, position, width), head after head cut out of a flat layout."""
    plain = array.astype(float)
    if layout is Layout.BNSH:
        return plain
    width = plain.shape[2] // count
    return np.stack([plain[:, :, h * width : (h + 1) * width] for h in range(count)], axis=1)


def logit(
    spec: AttentionSpec,
    inputs: AttentionInputs,
    query: list[float],
    key: list[float],
    place: tuple[int, int, int, int],
    q_seq_len: int,
) -> float:
    """What enters the softmax for one query and one key; -inf for a hidden key."""
    if not is_visible(spec, inputs, place, q_seq_len):
        return HIDDEN
    score = spec.scale_value * sum(a * b for a, b in zip(query, key, strict=True))
    if spec.softcap:
        score = spec.softcap * math.tanh(score / spec.softcap)
    return score + added_by_mask(inputs.attn_mask, place)


def is_visible(spec: AttentionSpec, inputs: AttentionInputs, place: tuple[int, int, int, int], q_seq_len: int) -> bool:
    """Causality, windows and lengths."""
    batch, _, i, j = place
    position = i
    if inputs.past_key is not None:
        position = i + inputs.past_key.shape[2]
    elif inputs.nonpad_kv_seqlen is not None:
        position = i + int(inputs.nonpad_kv_seqlen[batch]) - q_seq_len
    hidden = [
        spec.is_causal and j > position,
        spec.left_window >= 0 and j < position - spec.left_window,
        spec.right_window >= 0 and j > position + spec.right_window,
        inputs.nonpad_kv_seqlen is not None and j >= inputs.nonpad_kv_seqlen[batch],
    ]
    return not any(hidden)


def added_by_mask(mask: Array | None, place: tuple[int, int, int, int]) -> float:
    """One element of a mask that broadcasts from the right; past its last column all is hidden."""
    if mask is None:
        return 0.0
    if place[3] >= mask.shape[-1]:
        return HIDDEN
    wanted = place[4 - mask.ndim :]
    index = tuple(0 if size == 1 else at for at, size in zip(wanted, mask.shape, strict=True))
    element = mask[index]
    if mask.dtype == np.bool_:
        return 0.0 if element else HIDDEN
    return float(element)


def average(logits: list[float], values: list[list[float]], width: int) -> list[float]:
    """Softmax-weighted mean of the rows; zeros if no key is visible."""
    highest = max(logits, default=HIDDEN)
    if highest == HIDDEN:
        return [0.0] * width
    weights = [math.exp(logit - highest) for logit in logits]
    total = math.fsum(weights)
    return [math.fsum(w * row[c] for w, row in zip(weights, values, strict=True)) / total for c in range(width)]
