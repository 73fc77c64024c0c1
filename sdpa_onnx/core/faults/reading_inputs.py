"""Changes spec and inputs so that the oracle computes an alternative reading of the operator.

Each function returns changed copies and does not modify its arguments.
Readings that changed inputs cannot express are in `reading_blocks`.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout, MaskKind

__all__ = [
    "Change",
    "Problem",
    "change_lengths",
    "change_mask",
    "fill_mask",
    "first_length_for_all",
    "full_mask",
    "heads_first",
    "map_heads",
    "mask_as_boolean",
    "mask_ignored",
    "mask_times_scale",
    "mix_batch_and_head",
    "of_next",
    "only_first",
    "reverse_batch",
    "swap_true_and_false",
    "transpose_mask",
    "untransposed",
    "with_spec",
]

Array = NDArray[np.generic]
Problem = tuple[AttentionSpec, AttentionInputs]
Change = Callable[[AttentionSpec, AttentionInputs], Problem]


def with_spec(*, scale: Callable[[AttentionSpec], float] | None = None, softcap: float | None = None) -> Change:
    """Replace the scale or the softcap."""

    def change(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
        if scale is not None:
            spec = replace(spec, scale=scale(spec))
        if softcap is not None:
            spec = replace(spec, softcap=softcap)
        return spec, inputs

    return change


def heads_first(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
    """Convert query, key and value to the 4-D layout; their type stays the same."""
    if spec.layout is Layout.BNSH:
        return spec, inputs
    return _as_4d(spec, inputs, transpose=True)


def untransposed(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
    """Read the 3-D layout as if its memory were (batch, heads, sequence, width)."""
    return _as_4d(spec, inputs, transpose=False)


def _as_4d(spec: AttentionSpec, inputs: AttentionInputs, *, transpose: bool) -> Problem:
    def split(array: Array, num_heads: int, width: int) -> Array:
        batch_size, seq_len, _ = array.shape
        if transpose:
            return array.reshape(batch_size, seq_len, num_heads, width).transpose(0, 2, 1, 3)
        return array.reshape(batch_size, num_heads, seq_len, width)

    arrays = replace(
        inputs,
        query=split(inputs.query, spec.q_num_heads, spec.head_dim),
        key=split(inputs.key, spec.kv_num_heads, spec.head_dim),
        value=split(inputs.value, spec.kv_num_heads, spec.v_head_dim),
    )
    return replace(spec, layout=Layout.BNSH), arrays


def map_heads(
    *,
    query: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None,
    kv: Callable[[NDArray[np.int64], AttentionSpec], NDArray[np.int64]] | None = None,
) -> Change:
    """Permute the query heads, or change the key/value head that each query head uses.

    Args:
        query: Head indices -> the heads whose outputs appear there.
        kv: (heads, spec) -> key/value head of each; None = as the operator specifies.
    """

    def change(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
        spec, inputs = heads_first(spec, inputs)
        heads = np.arange(spec.q_num_heads)
        q_heads = heads if query is None else query(heads)
        kv_heads = (heads // spec.heads_per_kv if kv is None else kv(heads, spec))[q_heads]
        mask = inputs.attn_mask
        if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1:
            mask = np.take(mask, q_heads, axis=mask.ndim - 3)
        past_key, past_value = inputs.past_key, inputs.past_value
        arrays = replace(
            inputs,
            query=inputs.query[:, q_heads],
            key=inputs.key[:, kv_heads],
            value=inputs.value[:, kv_heads],
            attn_mask=mask,
            past_key=None if past_key is None else past_key[:, kv_heads],
            past_value=None if past_value is None else past_value[:, kv_heads],
        )
        return replace(spec, kv_num_heads=spec.q_num_heads), arrays

    return change


def reverse_batch(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
    """Reverse the order of the samples."""
    arrays = {name: array[::-1] for name, array in inputs.named().items() if name != "attn_mask"}
    if inputs.attn_mask is not None:
        arrays["attn_mask"] = full_mask(inputs)[::-1]
    return spec, AttentionInputs(**arrays, quantisers=inputs.quantisers)


def full_mask(inputs: AttentionInputs) -> Array:
    """Expand the mask to four dimensions with all queries and keys: (1 or batch, 1 or heads, queries, keys).

    Raises:
        ValueError: If there is no mask.
    """
    if inputs.attn_mask is None:
        raise ValueError("There is no mask.")
    # Query and key may have either layout.
    mask = inputs.attn_mask.reshape((1,) * (4 - inputs.attn_mask.ndim) + inputs.attn_mask.shape)
    axis = 2 if inputs.query.ndim == 4 else 1
    past = 0 if inputs.past_key is None else inputs.past_key.shape[2]
    queries, missing = inputs.query.shape[axis], inputs.key.shape[axis] + past - mask.shape[3]
    mask = np.broadcast_to(mask, (*mask.shape[:2], queries, mask.shape[3]))
    if missing > 0:
        hidden: Array = np.asarray(False if mask.dtype == np.bool_ else -np.inf).astype(mask.dtype)
        mask = np.concatenate([mask, np.broadcast_to(hidden, (*mask.shape[:3], missing))], axis=3)
    return mask


def change_mask(rule: Callable[[Array], Array]) -> Change:
    """Replace the mask by a function of the expanded mask."""

    def change(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
        return spec, replace(inputs, attn_mask=rule(full_mask(inputs)))

    return change


def mask_ignored(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
    """Remove the mask."""
    return replace(spec, mask=MaskKind.NONE), replace(inputs, attn_mask=None)


def mask_as_boolean(mask: Array) -> Array:
    """Convert to boolean: every value other than 0 may attend."""
    return np.not_equal(mask, 0)


def swap_true_and_false(mask: Array) -> Array:
    """Invert the mask: True hides a key."""
    return np.logical_not(mask)


def transpose_mask(mask: Array) -> Array:
    """Read the memory of (queries, keys) as (keys, queries)."""
    return np.ascontiguousarray(mask).reshape(*mask.shape[:2], mask.shape[3], mask.shape[2]).swapaxes(2, 3)


def only_first(axis: int) -> Callable[[Array], Array]:
    """Use the first entry of an axis for all."""
    return lambda mask: np.broadcast_to(np.take(mask, [0], axis=axis), mask.shape) if mask.shape[axis] else mask


def of_next(axis: int) -> Callable[[Array], Array]:
    """Use the next entry of an axis for each, and the first for the last."""
    return lambda mask: np.roll(mask, -1, axis=axis)


def mix_batch_and_head(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
    """Swap the batch axis and the head axis of the mask."""
    mask = full_mask(inputs)
    batch_size = inputs.query.shape[0]
    rows = np.arange(spec.q_num_heads) % max(1, mask.shape[0])
    columns = np.arange(batch_size) % max(1, mask.shape[1])
    return spec, replace(inputs, attn_mask=mask[rows[None, :], columns[:, None]] if mask.size else mask)


def fill_mask(where: str) -> Callable[[Array], Array]:
    """Unmask the hidden keys before a row's first visible key, after its last one, or between them.

    Args:
        where: "left", "right" or "holes".
    """

    def rule(mask: Array) -> Array:
        boolean = mask.dtype == np.bool_
        visible = np.asarray(mask, dtype=bool) if boolean else ~np.isneginf(mask.astype(np.float64))
        before = ~np.logical_or.accumulate(visible, axis=3)
        after = ~np.logical_or.accumulate(visible[..., ::-1], axis=3)[..., ::-1]
        opened = {"left": before & ~after, "right": after & ~before, "holes": ~visible & ~before & ~after}[where]
        return np.where(opened, True, visible) if boolean else np.where(opened, mask.dtype.type(0), mask)

    return rule


def mask_times_scale(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
    """Multiply the mask by the scale, as the scores."""
    mask = full_mask(inputs).astype(np.float64)
    finite = np.isfinite(mask)
    return spec, replace(inputs, attn_mask=np.where(finite, np.where(finite, mask, 0.0) * spec.scale_value, mask))


def change_lengths(step: int) -> Change:
    """Change every length by a step."""

    def change(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
        if inputs.nonpad_kv_seqlen is None:
            return spec, inputs
        most = inputs.key.shape[2 if inputs.key.ndim == 4 else 1]
        lengths = np.clip(inputs.nonpad_kv_seqlen.astype(np.int64) + step, 0, most)
        return spec, replace(inputs, nonpad_kv_seqlen=lengths)

    return change


def first_length_for_all(spec: AttentionSpec, inputs: AttentionInputs) -> Problem:
    """Use the length of sample 0 for every sample."""
    lengths = inputs.nonpad_kv_seqlen
    if lengths is None or not lengths.size:
        return spec, inputs
    return spec, replace(inputs, nonpad_kv_seqlen=np.full_like(lengths, lengths[0]))
