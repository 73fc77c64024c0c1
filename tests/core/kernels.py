"""Right ways to compute attention that differ in the order of evaluation, in emulated arithmetics.

What a format stores is rounded to it; sums run in the working format, as on real hardware.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.masks import attn_bias
from sdpa_onnx.core.attention.oracle import split_heads
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout

Array = NDArray[np.generic]

_TILE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """A storage format, the format that sums run in, and whether products round their operands to TF32 first."""

    storage: np.dtype[np.generic]
    working: np.dtype[np.generic]
    tf32: bool = False

    def work(self, array: Array | float) -> Array:
        return np.asarray(array).astype(self.working)

    def store(self, array: Array | float) -> Array:
        """Round to the storage format; overflow is for the test to avoid or to want."""
        with np.errstate(over="ignore"):
            return np.asarray(array).astype(self.storage).astype(self.working)

    def product(self, left: Array, right: Array) -> Array:
        return to_tf32(left) @ to_tf32(right) if self.tf32 else left @ right


def to_tf32(array: Array) -> Array:
    """Round float32 to 11 bits of significand, ties to even."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return kept.view(np.float32)


_F32 = np.dtype(np.float32)

ARITHMETICS: dict[str, Arithmetic] = {
    "float64": Arithmetic(storage=np.dtype(np.float64), working=np.dtype(np.float64)),
    "float32": Arithmetic(storage=_F32, working=_F32),
    "tf32": Arithmetic(storage=_F32, working=_F32, tf32=True),
    "float16": Arithmetic(storage=np.dtype(np.float16), working=_F32),
    "bfloat16": Arithmetic(storage=np.dtype(ml_dtypes.bfloat16), working=_F32),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The operands of one head, in the working format."""

    query: Array
    key: Array
    value: Array
    bias: Array
    scale: float
    softcap: float = 0.0


Kernel = Callable[[Head, Arithmetic], Array]


def _shifted_exp(logits: Array) -> Array:
    """exp(logits - row maximum); zeros in a row of -inf."""
    highest = logits.max(1, keepdims=True)
    return np.exp(logits - np.where(np.isneginf(highest), 0, highest).astype(logits.dtype))


def _nonzero(total: Array) -> Array:
    return np.where(total == 0, np.ones_like(total), total)


def _logits(head: Head, fmt: Arithmetic, scores: Array) -> Array:
    if head.softcap:
        cap = fmt.work(head.softcap)
        scores = fmt.store(cap * np.tanh(fmt.store(scores / cap)))
    return fmt.store(scores + fmt.work(head.bias)) if np.any(head.bias) else scores


def _scaled_after(head: Head, fmt: Arithmetic) -> Array:
    product = fmt.store(fmt.product(head.query, head.key.T))
    return fmt.store(product * fmt.store(head.scale))


def naive(head: Head, fmt: Arithmetic) -> Array:
    """Scores, then scale, then softmax, then the second product: everything stored."""
    weights = _shifted_exp(_logits(head, fmt, _scaled_after(head, fmt)))
    weights = fmt.store(weights / _nonzero(weights.sum(1, keepdims=True)))
    return fmt.store(fmt.product(weights, head.value))


def fused_scale(head: Head, fmt: Arithmetic) -> Array:
    """The scale inside the first product: scores are stored once."""
    scores = fmt.store(fmt.product(head.query, head.key.T) * fmt.work(head.scale))
    weights = _shifted_exp(_logits(head, fmt, scores))
    weights = fmt.store(weights / _nonzero(weights.sum(1, keepdims=True)))
    return fmt.store(fmt.product(weights, head.value))


def prescaled(head: Head, fmt: Arithmetic) -> Array:
    """The root of the scale on query and key first, as ONNX advises."""
    if head.scale < 0:
        return naive(head, fmt)
    root = fmt.store(math.sqrt(head.scale))
    scores = fmt.store(fmt.product(fmt.store(head.query * root), fmt.store(head.key * root).T))
    weights = _shifted_exp(_logits(head, fmt, scores))
    weights = fmt.store(weights / _nonzero(weights.sum(1, keepdims=True)))
    return fmt.store(fmt.product(weights, head.value))


def norm_last(head: Head, fmt: Arithmetic) -> Array:
    """Divide by the row sum after the second product."""
    weights = _shifted_exp(_logits(head, fmt, _scaled_after(head, fmt)))
    summed = fmt.product(fmt.store(weights), head.value)
    return fmt.store(summed / _nonzero(weights.sum(1, keepdims=True)))


def tiled(head: Head, fmt: Arithmetic) -> Array:
    """Tile by tile with a running maximum and sum, scores never stored (flash attention)."""
    rows = head.query.shape[0]
    highest = np.full((rows, 1), -np.inf, dtype=fmt.working)
    total = np.zeros((rows, 1), dtype=fmt.working)
    summed = np.zeros((rows, head.value.shape[1]), dtype=fmt.working)
    for start in range(0, head.key.shape[0], _TILE):
        part = slice(start, start + _TILE)
        scores = fmt.product(head.query, head.key[part].T) * fmt.work(head.scale)
        if head.softcap:
            scores = fmt.work(head.softcap) * np.tanh(scores / fmt.work(head.softcap))
        logits = scores + fmt.work(head.bias[:, part])
        new = np.maximum(highest, logits.max(1, keepdims=True))
        known = np.where(np.isneginf(new), 0, new).astype(fmt.working)
        weights, correction = np.exp(logits - known), np.exp(highest - known)
        total = total * correction + weights.sum(1, keepdims=True)
        summed = summed * correction + fmt.product(fmt.store(weights), head.value[part])
        highest = new
    return fmt.store(summed / _nonzero(total))


def sequential(head: Head, fmt: Arithmetic) -> Array:
    """Every sum strictly one term after the other: the worst order for rounding."""
    if fmt.tf32:
        head = replace(head, query=to_tf32(head.query), key=to_tf32(head.key), value=to_tf32(head.value))
    product = np.zeros((head.query.shape[0], head.key.shape[0]), dtype=fmt.working)
    for column in range(head.query.shape[1]):
        product += head.query[:, column, None] * head.key[None, :, column]
    scores = fmt.store(fmt.store(product) * fmt.store(head.scale))
    weights = _shifted_exp(_logits(head, fmt, scores))
    total = np.add.accumulate(weights, axis=1)[:, -1:]
    weights = fmt.store(weights / _nonzero(total))
    weights = to_tf32(weights) if fmt.tf32 else weights
    summed = np.zeros((head.query.shape[0], head.value.shape[1]), dtype=fmt.working)
    for row in range(head.key.shape[0]):
        summed += weights[:, row, None] * head.value[row]
    return fmt.store(summed)


def softcap_after_mask(head: Head, fmt: Arithmetic) -> Array:
    """A planted fault: the cap bends what the mask added."""
    scores = _scaled_after(head, fmt) + fmt.work(head.bias)
    weights = _shifted_exp(fmt.work(head.softcap) * np.tanh(scores / fmt.work(head.softcap)))
    return fmt.store((weights / weights.sum(1, keepdims=True)) @ head.value)


KERNELS: dict[str, Kernel] = {
    "naive": naive,
    "fused-scale": fused_scale,
    "prescaled": prescaled,
    "norm-last": norm_last,
    "tiled": tiled,
    "sequential": sequential,
}


def run_kernel(kernel: Kernel, spec: AttentionSpec, inputs: AttentionInputs, fmt: Arithmetic) -> Array:
    """Compute all heads, in the storage format and the spec's layout."""
    query, key, value = (fmt.work(array) for array in split_heads(spec, inputs))
    batch_size, _, q_seq_len, _ = query.shape
    output = np.zeros((batch_size, spec.q_num_heads, q_seq_len, spec.v_head_dim), dtype=fmt.storage)
    for batch in range(batch_size):
        for index in range(spec.q_num_heads):
            bias = attn_bias(
                spec,
                inputs,
                batch=batch,
                head=index,
                rows=np.arange(q_seq_len),
                q_seq_len=q_seq_len,
                total_seq_len=key.shape[2],
            )
            head = Head(
                query=query[batch, index],
                key=key[batch, index // spec.heads_per_kv],
                value=value[batch, index // spec.heads_per_kv],
                bias=bias,
                scale=spec.scale_value,
                softcap=spec.softcap,
            )
            output[batch, index] = kernel(head, fmt).astype(fmt.storage)
    if spec.layout is Layout.BSH:
        return output.transpose(0, 2, 1, 3).reshape(batch_size, q_seq_len, -1)
    return output


def run_torch(spec: AttentionSpec, inputs: AttentionInputs, fmt: Arithmetic) -> Array:
    """PyTorch's own kernel for BNSH without mask, window, softcap or cache."""
    import torch

    dtype = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16}.get(
        fmt.storage.name, torch.bfloat16
    )
    query, key, value = (
        torch.from_numpy(array.astype(np.float64)).to(dtype) for array in (inputs.query, inputs.key, inputs.value)
    )
    with torch.no_grad():
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=spec.is_causal, scale=spec.scale_value, enable_gqa=spec.heads_per_kv > 1
        )
    return output.to(torch.float64).numpy().astype(fmt.storage)
