"""Attention with wrong arithmetic (accumulators, softmax, storage), for the power table. Runs no runtime."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests.core.kernels import Arithmetic, Head, fused_scale

Array = NDArray[np.generic]


def narrow_sums(head: Head, fmt: Arithmetic, *, storage: np.dtype[np.generic], softmax: bool) -> Array:
    """Every sum term by term in a 16-bit accumulator; with `softmax`, the sum of the softmax too."""

    def rounded(array: Array) -> Array:
        return array.astype(storage).astype(np.float32)

    def summed(left: Array, right: Array) -> Array:
        total = np.zeros((left.shape[0], right.shape[1]), dtype=np.float32)
        for index in range(left.shape[1]):
            total = rounded(total + rounded(left[:, index, None] * right[index]))
        return total

    scores = fmt.store(summed(head.query, head.key.T) * fmt.work(head.scale))
    logits = fmt.store(scores + head.bias.astype(np.float32))
    shifted = logits - logits.max(1, keepdims=True)
    weights = rounded(np.exp(rounded(shifted))) if softmax else np.exp(shifted)
    total = summed(weights, np.ones((weights.shape[1], 1), dtype=np.float32)) if softmax else weights.sum(1)[:, None]
    return fmt.store(summed(fmt.store(weights / total), head.value))


def not_shifted(head: Head, fmt: Arithmetic) -> Array:
    """A softmax without subtraction of the highest logit before exp; exp is stored in float16."""
    scores = fmt.store(fmt.product(head.query, head.key.T) * fmt.work(head.scale))
    weights = np.exp(fmt.store(scores + head.bias.astype(np.float32)))
    weights = fmt.store(weights) if fmt.storage == np.float16 else weights
    weights = fmt.store(weights / weights.sum(1, keepdims=True))
    return fmt.store(fmt.product(weights, head.value))


def secret_weights(head: Head, fmt: Arithmetic, *, storage: np.dtype[np.generic]) -> Array:
    """Weights stored in a narrower format than the tensors."""
    scores = fmt.store(fmt.product(head.query, head.key.T) * fmt.work(head.scale))
    logits = scores + head.bias.astype(np.float32)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return (weights.astype(storage).astype(np.float32) @ head.value) / weights.sum(1, keepdims=True)


def secret_storage(head: Head, fmt: Arithmetic, *, storage: np.dtype[np.generic]) -> Array:
    """Scores and weights stored in a narrower format than the tensors, the output too."""
    return fused_scale(head, replace(fmt, storage=storage))
