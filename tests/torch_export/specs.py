"""Bare attention specs for every feature, and the deviation of an output from the oracle."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Layout, MaskKind, ScaleRule

_BASE: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 2, "head_dim": 8}
_PAST: dict[str, Any] = {"has_past": True, "is_causal": True}

_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "equal-heads": {"kv_num_heads": 4},
    "one-kv-head": {"kv_num_heads": 1},
    "causal": {"is_causal": True},
    "narrow-values": {"v_head_dim": 5},
    "bool": {"mask": MaskKind.BOOL},
    "float": {"mask": MaskKind.FLOAT},
    "bool-causal": {"mask": MaskKind.BOOL, "is_causal": True},
    "float-causal": {"mask": MaskKind.FLOAT, "is_causal": True},
    "past": {"has_past": True},
    "past-causal": _PAST,
    "past-causal-bool": {**_PAST, "mask": MaskKind.BOOL},
    "lengths": {"mask": MaskKind.LENGTHS},
    "lengths-causal": {"mask": MaskKind.LENGTHS, "is_causal": True},
    "lengths-window": {"mask": MaskKind.LENGTHS, "left_window": 1},
    "window": {"left_window": 2, "right_window": 1},
    "window-past": {**_PAST, "left_window": 2, "right_window": 0},
    "softcap": {"softcap": 3.0},
    "softcap-bool-causal": {"softcap": 3.0, "mask": MaskKind.BOOL, "is_causal": True},
    "softcap-float-past": {**_PAST, "softcap": 2.0, "mask": MaskKind.FLOAT},
    "scale-number": {"scale": 0.3},
    "scale-rule": {"scale": ScaleRule.INVERSE},
    "bsh": {"layout": Layout.BSH},
    "bsh-past": {**_PAST, "layout": Layout.BSH, "v_head_dim": 6},
}

SPECS = {name: AttentionSpec(**{**_BASE, **options}) for name, options in _OPTIONS.items()}

SIZES = [(1, 1, 1, 0), (2, 3, 5, 4), (3, 7, 7, 1), (2, 6, 3, 9)]


def case_of(spec: AttentionSpec, size: tuple[int, int, int, int]) -> AttentionCase:
    """The case of those sizes (batch, queries, keys, past); the past only if the spec has one."""
    batch_size, q_seq_len, kv_seq_len, past_seq_len = size
    return AttentionCase(
        spec=spec,
        batch_size=batch_size,
        q_seq_len=q_seq_len,
        kv_seq_len=kv_seq_len,
        past_seq_len=past_seq_len if spec.has_past else 0,
    )


def error_of(spec: AttentionSpec, inputs: AttentionInputs, actual: NDArray[np.generic]) -> float:
    """Largest deviation from the float64 oracle."""
    return float(np.abs(actual.astype(np.float64) - attend(spec, inputs).output).max(initial=0.0))
