"""Slice every array of a case: keep some samples, queries, keys, heads or columns.

Does not choose what to keep: `reduce.case` does.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.workflows.check.case_trial import CaseTrial

__all__ = ["cut", "cut_groups", "heads_apart", "in_layout"]

Array = NDArray[np.generic]
Index = NDArray[np.int64]

# Size -> its axis in each 4-D array. `_mask_cut` handles the axes of the mask.
_AXES: Mapping[str, Mapping[str, int]] = {
    "batch_size": {"query": 0, "key": 0, "value": 0, "past_key": 0, "past_value": 0, "nonpad_kv_seqlen": 0},
    "q_seq_len": {"query": 2},
    "kv_seq_len": {"key": 2, "value": 2},
    "past_seq_len": {"past_key": 2, "past_value": 2},
    "kv_num_heads": {"key": 1, "value": 1, "past_key": 1, "past_value": 1},
    "head_dim": {"query": 3, "key": 3, "past_key": 3},
    "v_head_dim": {"value": 3, "past_value": 3},
}
_IN_LAYOUT = ("query", "key", "value")


def cut(trial: CaseTrial, size: str, index: Index) -> CaseTrial:
    """Keep some samples, queries, keys, key/value heads or columns of every array.

    Args:
        trial: The trial; its inputs are set.
        size: Name of the size.
        index: Indices to keep. For heads: indices of key/value heads, kept with all their query heads.
    """
    return _cut(trial, size, index, None)


def cut_groups(trial: CaseTrial, index: Index) -> CaseTrial:
    """Keep some of the query heads in the group of each key/value head."""
    return _cut(trial, "groups", None, index)


def _cut(trial: CaseTrial, size: str, index: Index | None, groups: Index | None) -> CaseTrial:
    case, spec = trial.case, trial.case.spec
    arrays = heads_apart(spec, trial.draw().named())
    mask = arrays.pop("attn_mask", None)
    if index is not None:
        arrays |= {name: np.take(arrays[name], index, axis) for name, axis in _AXES[size].items() if name in arrays}
    q_heads = np.arange(spec.q_num_heads)
    if size in ("kv_num_heads", "groups"):
        kept = np.arange(spec.kv_num_heads) if index is None else index
        inner = np.arange(spec.heads_per_kv) if groups is None else groups
        q_heads = (kept[:, None] * spec.heads_per_kv + inner).reshape(-1)
        arrays["query"] = np.take(arrays["query"], q_heads, 1)
        spec = replace(spec, q_num_heads=q_heads.size, kv_num_heads=kept.size)
    if size in ("head_dim", "v_head_dim") and index is not None:
        spec = replace(spec, **{size: index.size})  # type: ignore[arg-type]  # both are integers
    if size == "kv_seq_len" and index is not None and "nonpad_kv_seqlen" in arrays:
        lengths = arrays["nonpad_kv_seqlen"].astype(np.int64)
        arrays["nonpad_kv_seqlen"] = (index[None, :] < lengths[:, None]).sum(1).astype(np.int64)
    if mask is not None:
        arrays["attn_mask"] = _mask_cut(trial, mask, size, index, q_heads)
    sizes = {size: index.size} if index is not None and hasattr(case, size) else {}
    smaller = replace(case, spec=spec, **sizes)  # type: ignore[arg-type]  # sizes are integers
    return replace(trial, case=smaller, inputs=AttentionInputs(**in_layout(spec, arrays), quantisers=None))


def _mask_cut(trial: CaseTrial, mask: Array, size: str, index: Index | None, q_heads: Index) -> Array:
    """Slice a mask of any rank. An axis of size 1 stays; the last axis may be shorter than the keys."""
    case = trial.case
    full = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if size in ("kv_num_heads", "groups"):
        full = full if full.shape[1] == 1 else np.take(full, q_heads, 1)
    elif index is not None and size in ("batch_size", "q_seq_len"):
        axis = 0 if size == "batch_size" else 2
        full = full if full.shape[axis] == 1 else np.take(full, index, axis)
    elif index is not None and size in ("kv_seq_len", "past_seq_len"):
        past, new = np.arange(case.past_seq_len), np.arange(case.kv_seq_len)
        past, new = (past, index) if size == "kv_seq_len" else (index, new)
        keys = np.concatenate([past, case.past_seq_len + new])
        full = np.take(full, keys[keys < full.shape[3]], 3)
    return full.reshape(full.shape[4 - mask.ndim :])


def heads_apart(spec: AttentionSpec, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Convert every tensor to 4-D BNSH."""
    if spec.layout is Layout.BNSH:
        return dict(arrays)
    sizes = {
        "query": (spec.q_num_heads, spec.head_dim),
        "key": (spec.kv_num_heads, spec.head_dim),
        "value": (spec.kv_num_heads, spec.v_head_dim),
    }
    apart = {
        name: arrays[name].reshape(*arrays[name].shape[:2], *sizes[name]).transpose(0, 2, 1, 3) for name in _IN_LAYOUT
    }
    return {**arrays, **apart}


def in_layout(spec: AttentionSpec, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Convert 4-D BNSH tensors to the layout of the spec."""
    if spec.layout is Layout.BNSH:
        return dict(arrays)
    joined = {}
    for name in _IN_LAYOUT:
        batch, heads, length, width = arrays[name].shape
        joined[name] = arrays[name].transpose(0, 2, 1, 3).reshape(batch, length, heads * width)
    return {**arrays, **joined}
