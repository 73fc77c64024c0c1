"""Propose smaller sizes of a failing case: fewer samples, heads, queries, keys and columns.

Slices the arrays and does not draw new ones, so that the values that fail can stay. Does not run
a case: `ReductionTrials` checks whether it still fails.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.workflows.check.case_trial import CaseTrial
from sdpa_onnx.workflows.reduce.cut_arrays import cut, cut_groups

__all__ = ["MODEL_PASSES", "RUN_PASSES", "SIZE_PASSES", "Worst", "targets"]

Index = NDArray[np.int64]
# (batch, query head, query, column) of the element with the largest error, or None. Slices are taken around it.
Worst = tuple[int, int, int, int] | None
SizePass = Callable[[CaseTrial, Worst], Iterator[CaseTrial]]


def targets(size: int, least: int) -> list[int]:
    """Sizes to try, smallest first: the minimum, one more, then a half, three quarters, one less."""
    sizes = (least, least + 1, size // 2, size - size // 4, size - 1)
    return [target for target in dict.fromkeys(sizes) if least <= target < size]


def _windows(size: int, target: int, near: int | None) -> Iterator[Index]:
    """Indices to keep out of `size`: the first, the last, those around the worst element."""
    starts = [0, size - target] + ([] if near is None else [max(0, min(near - target // 2, size - target))])
    for start in dict.fromkeys(starts):
        yield np.arange(start, start + target)


def _size_pass(size: str, least: int, position: int | None) -> SizePass:
    """A pass over one size; `position` is the axis of that size in the index of the worst element."""

    def shrink(trial: CaseTrial, worst: Worst) -> Iterator[CaseTrial]:
        now = getattr(trial.case if hasattr(trial.case, size) else trial.case.spec, size)
        near = worst[position] if worst is not None and position is not None else None
        for target in targets(now, least):
            for index in _windows(now, target, near):
                yield cut(trial, size, index)

    return shrink


def _both_widths(trial: CaseTrial, worst: Worst) -> Iterator[CaseTrial]:
    """Shrink `head_dim` and `v_head_dim` together where they are equal."""
    width = trial.case.spec.head_dim
    if trial.case.spec.v_head_dim != width:
        return
    for target in targets(width, 1):
        for index in _windows(width, target, worst[3] if worst else None):
            yield cut(cut(trial, "head_dim", index), "v_head_dim", index)


def _heads(trial: CaseTrial, worst: Worst) -> Iterator[CaseTrial]:
    """One head of each kind; then fewer key/value heads with all their query heads; then fewer query heads each."""
    spec = trial.case.spec
    per_kv = spec.heads_per_kv
    kv_near, group_near = (None, None) if worst is None else divmod(worst[1], per_kv)
    if spec.q_num_heads > 1 and spec.kv_num_heads > 1 and per_kv > 1:
        one = cut(trial, "kv_num_heads", np.array([kv_near or 0]))
        yield cut_groups(one, np.array([group_near or 0]))
    for target in targets(spec.kv_num_heads, 1):
        for index in _windows(spec.kv_num_heads, target, kv_near):
            yield cut(trial, "kv_num_heads", index)
    for target in targets(per_kv, 1):
        for index in _windows(per_kv, target, group_near):
            yield cut_groups(trial, index)


# Sizes that each run of a session has for itself, in the order of the passes below.
RUN_PASSES: tuple[SizePass, ...] = (
    _size_pass("batch_size", 1, 0),
    _size_pass("q_seq_len", 1, 2),
    _size_pass("kv_seq_len", 1, None),
    _size_pass("past_seq_len", 0, None),
)
# Sizes that the model fixes.
MODEL_PASSES: tuple[SizePass, ...] = (
    _heads,
    _both_widths,
    _size_pass("head_dim", 1, None),
    _size_pass("v_head_dim", 1, 3),
)
SIZE_PASSES: tuple[SizePass, ...] = (RUN_PASSES[0], _heads, *RUN_PASSES[1:], *MODEL_PASSES[1:])
