"""Generates random inputs of an attention from a seed, with a given standard deviation of the logits.

A flat softmax hides faults: with logits of standard deviation 0.1 the output is the mean of the
values whatever the scale is. So every check runs on several spreads. Computes no attention.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.score_quantisers import ScoreQuantisers
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype, MaskKind

__all__ = ["LADDER", "ONNX_INPUT_NAMES", "AttentionInputs", "draw_inputs", "numpy_dtype"]

# Standard deviation of the logits over one row. 1 is what scaled attention has on unit-variance
# queries and keys; 0.3 is nearly flat, 4 nearly one-hot (METHOD A.8 uses these three).
LADDER: tuple[float, ...] = (0.3, 1.0, 4.0)

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """The inputs of one attention, as the runtime receives them.

    Args:
        query: (batch_size, q_num_heads, q_seq_len, head_dim), or 3-D
            (batch_size, q_seq_len, q_num_heads * head_dim).
        key: (batch_size, kv_num_heads, kv_seq_len, head_dim), or 3-D.
        value: (batch_size, kv_num_heads, kv_seq_len, v_head_dim), or 3-D.
        attn_mask: Boolean (True = may attend) or float (added), broadcastable to
            (batch_size, q_num_heads, q_seq_len, total_seq_len); its last axis
            may be shorter; the missing keys are then hidden.
        past_key: (batch_size, kv_num_heads, past_seq_len, head_dim).
        past_value: (batch_size, kv_num_heads, past_seq_len, v_head_dim).
        nonpad_kv_seqlen: (batch_size,), int64, number of valid keys of each sample.
        quantisers: How the graph that reads them rounds scores and weights to integers; None = not at all.
    """

    query: Array
    key: Array
    value: Array
    attn_mask: Array | None = None
    past_key: Array | None = None
    past_value: Array | None = None
    nonpad_kv_seqlen: Array | None = None
    quantisers: ScoreQuantisers | None = None

    def named(self) -> dict[str, Array]:
        """Return the arrays that are present, by field name."""
        arrays = {name: getattr(self, name) for name in ONNX_INPUT_NAMES}
        return {name: array for name, array in arrays.items() if array is not None}

    def onnx_feeds(self) -> dict[str, Array]:
        """Return the arrays that are present, by ONNX input name (Q, K, V, attn_mask, ...)."""
        return {ONNX_INPUT_NAMES[name]: array for name, array in self.named().items()}

    @classmethod
    def from_feeds(cls, feeds: Mapping[str, Array]) -> "AttentionInputs":
        """Create the inputs from a mapping by ONNX input name."""
        arrays = {name: feeds[onnx] for name, onnx in ONNX_INPUT_NAMES.items() if onnx in feeds}
        return cls(**arrays, quantisers=None)


# Field name -> input name of ONNX Attention, in the operator's order.
ONNX_INPUT_NAMES: dict[str, str] = {
    "query": "Q",
    "key": "K",
    "value": "V",
    "attn_mask": "attn_mask",
    "past_key": "past_key",
    "past_value": "past_value",
    "nonpad_kv_seqlen": "nonpad_kv_seqlen",
}


def numpy_dtype(dtype: Dtype) -> np.dtype[np.generic]:
    """Return the numpy type; bfloat16 comes from ml_dtypes."""
    if dtype is Dtype.BFLOAT16:
        import ml_dtypes

        bfloat16: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(dtype.value)


def draw_inputs(case: AttentionCase, *, spread: float = 1.0, seed: int = 0) -> AttentionInputs:
    """Draw random inputs whose logits have the given standard deviation.

    Query and key are N(0, sigma^2) with |scale| sigma^2 sqrt(head_dim) = spread,
    so that the logits of a row have standard deviation `spread`; value is
    N(0, 1). A mask differs along every axis that it has, so also between samples, heads and queries. Boolean masks
    hide a random quarter of the keys and, if there is more than one query, all keys of the last query of each sample;
    lengths lie between half and all of the keys.

    Args:
        case: Sizes, type and spec.
        spread: Standard deviation of the scaled logits, before softcap and mask.
        seed: The same seed produces the same arrays.

    Returns:
        Arrays in the case's type and layout.

    Source: Var(q.k) = sigma^4 head_dim for independent components (METHOD D.1).
    """
    rng = np.random.default_rng(seed)
    dtype = numpy_dtype(case.dtype)
    scale = abs(case.spec.scale_value) or 1.0
    sigma = math.sqrt(spread / (scale * math.sqrt(case.spec.head_dim)))
    arrays: dict[str, Array] = {}
    for name, shape in case.input_shapes().items():
        if name == "attn_mask":
            arrays[name] = _draw_mask(case, shape, rng, dtype)
        elif name == "nonpad_kv_seqlen":
            arrays[name] = rng.integers((case.kv_seq_len + 1) // 2, case.kv_seq_len + 1, shape, dtype=np.int64)
        else:
            width = 1.0 if name in ("value", "past_value") else sigma
            arrays[name] = (width * rng.standard_normal(shape, dtype=np.float32)).astype(dtype)
    return AttentionInputs(**arrays, quantisers=None)


def _draw_mask(
    case: AttentionCase, shape: tuple[int, ...], rng: np.random.Generator, dtype: np.dtype[np.generic]
) -> Array:
    if case.mask_kind is MaskKind.FLOAT:
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype)
    mask = rng.random(shape) < 0.75
    if len(shape) > 1 and shape[-2] > 1:
        mask[..., -1:, :] = False
    return mask
