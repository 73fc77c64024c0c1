"""Counts FLOPs, exponentials and bytes of one attention, and computes its roofline time.

Measures nothing; the peak rates of a machine are measured in `measure`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.spec import AttentionCase, Dtype, MaskKind

__all__ = ["AttentionWork", "Ceilings", "attention_work", "bound_by", "is_memory_bound", "roof_seconds"]

_BYTES = {Dtype.FLOAT64: 8, Dtype.FLOAT32: 4, Dtype.FLOAT16: 2, Dtype.BFLOAT16: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """Operation counts of one forward pass over all samples and heads.

    Args:
        useful_flops: Operations on visible (query, key) pairs; a multiply-add counts as two.
        executed_flops: Operations of a kernel that skips no pair.
        exps: Exponentials of visible pairs.
        bytes_moved: Query, key, value read once and output written once (the
            lower bound of a fused kernel), bytes.
    """

    useful_flops: int
    executed_flops: int
    exps: int
    bytes_moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Peak rates of this machine, measured in the same run with the same number of threads.

    Args:
        gemm_flops_per_second: Of a matrix product.
        exps_per_second: Of a softmax.
        bytes_per_second: Of reading memory; -1 if not measured (runs of earlier versions).
    """

    gemm_flops_per_second: float
    exps_per_second: float
    bytes_per_second: float = -1.0


def attention_work(case: AttentionCase) -> AttentionWork:
    """Count the operations of one attention without its projections.

    Masks and lengths count as if they hid nothing, because only their values
    show what they hide; causality and windows are counted exactly.

    Source: two matrix products, 2 P H (d_k + d_v) operations over P visible pairs
        (METHOD C.1).

    Example:
        >>> from sdpa_onnx.core.attention.spec import AttentionSpec
        >>> spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4)
        >>> attention_work(AttentionCase(spec=spec, q_seq_len=2)).useful_flops
        64
    """
    spec = case.spec
    heads = case.batch_size * spec.q_num_heads
    pairs = _visible_pairs(case)
    per_pair = 2 * (spec.head_dim + spec.v_head_dim)
    query_side = heads * case.q_seq_len * (spec.head_dim + spec.v_head_dim)
    key_side = case.batch_size * spec.kv_num_heads * case.total_seq_len * (spec.head_dim + spec.v_head_dim)
    return AttentionWork(
        useful_flops=heads * pairs * per_pair,
        executed_flops=heads * case.q_seq_len * case.total_seq_len * per_pair,
        exps=heads * pairs,
        bytes_moved=_BYTES[case.dtype] * (query_side + key_side),
    )


def roof_seconds(work: AttentionWork, ceilings: Ceilings) -> float:
    """Lower bound of the time on one thread: products and exponentials do not overlap, memory reads do.

    Source: METHOD C.1; roofline after Williams, Waterman and Patterson 2009.
    """
    return max(_compute_seconds(work, ceilings), _memory_seconds(work, ceilings))


def is_memory_bound(work: AttentionWork, ceilings: Ceilings) -> bool:
    """Whether reading the inputs takes longer than computing; False if the bandwidth was not measured."""
    return _memory_seconds(work, ceilings) > _compute_seconds(work, ceilings)


def bound_by(work: AttentionWork, ceilings: Ceilings, *, host_seconds: float | None = None) -> str:
    """Return the part of one call that takes longest: "products", "exponentials", "memory" or "host".

    Args:
        work: Operation counts of the call.
        ceilings: Peak rates of the machine.
        host_seconds: Time of the call outside kernels, None if unknown.
    """
    parts = {
        "products": work.useful_flops / ceilings.gemm_flops_per_second,
        "exponentials": work.exps / ceilings.exps_per_second,
        "memory": _memory_seconds(work, ceilings),
        **({} if host_seconds is None else {"host": host_seconds}),
    }
    return max(parts, key=lambda name: parts[name])


def _compute_seconds(work: AttentionWork, ceilings: Ceilings) -> float:
    return work.useful_flops / ceilings.gemm_flops_per_second + work.exps / ceilings.exps_per_second


def _memory_seconds(work: AttentionWork, ceilings: Ceilings) -> float:
    return work.bytes_moved / ceilings.bytes_per_second if ceilings.bytes_per_second > 0 else 0.0


def _visible_pairs(case: AttentionCase) -> int:
    """Count the (query, key) pairs of one head that causality and windows leave visible."""
    spec = case.spec
    # With lengths the queries are aligned with the last keys, as in masks.causal_offset.
    offset = case.kv_seq_len - case.q_seq_len if spec.mask is MaskKind.LENGTHS else case.past_seq_len
    position: NDArray[np.int64] = np.arange(case.q_seq_len, dtype=np.int64) + offset
    last = np.full_like(position, case.total_seq_len - 1)
    first = np.zeros_like(position)
    if spec.is_causal:
        last = np.minimum(last, position)
    if spec.right_window >= 0:
        last = np.minimum(last, position + spec.right_window)
    if spec.left_window >= 0:
        first = np.maximum(first, position - spec.left_window)
    return int(np.maximum(last - first + 1, 0).sum())
