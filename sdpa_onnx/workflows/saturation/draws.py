"""Draw random queries and keys for the softmax measurement, and compute their gradients with torch.

Judges and averages nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["V_HEAD_DIM", "KeyDraw", "QueryBlock", "gaussian_draw", "gradient_norms", "module_draw"]

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

# Width of a value: d_v = 64 in the base model (Vaswani et al. 2017, table 3). No measure depends on it.
V_HEAD_DIM = 64
# Rows of one block are chosen so that rows x keys stays at this many elements (16 MiB of float64).
_BLOCK_ELEMENTS = 2**21


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBlock:
    """Some queries of one head.

    Args:
        query: (rows, head_dim).
        key: (kv_seq_len, head_dim).
        value: (kv_seq_len, V_HEAD_DIM), N(0, 1).
        upstream: (rows, V_HEAD_DIM), dL/doutput, each row of norm 1.
    """

    query: Float32
    key: Float32
    value: Float32
    upstream: Float32


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDraw:
    """One independent draw of keys, and the queries that read them; one block per head."""

    heads: tuple[QueryBlock, ...]

    def blocks(self) -> Iterator[QueryBlock]:
        """Blocks small enough to hold their weights in memory."""
        for head in self.heads:
            step = max(1, _BLOCK_ELEMENTS // head.key.shape[0])
            for start in range(0, head.query.shape[0], step):
                part = slice(start, start + step)
                yield QueryBlock(query=head.query[part], key=head.key, value=head.value, upstream=head.upstream[part])


def gaussian_draw(
    rng: np.random.Generator, *, rows: int, kv_seq_len: int, head_dim: int, sigma: float, dtype: np.dtype[np.generic]
) -> KeyDraw:
    """Draw query and key components N(0, sigma^2), rounded to dtype.

    Source: Vaswani et al. 2017, footnote 4, with sigma = 1.
    """
    query, key = (
        (sigma * rng.standard_normal((count, head_dim), dtype=np.float32)).astype(dtype).astype(np.float32)
        for count in (rows, kv_seq_len)
    )
    return KeyDraw(heads=(_with_values(rng, query, key, dtype),))


def module_draw(
    rng: np.random.Generator,
    *,
    rows: int,
    kv_seq_len: int,
    hidden_size: int,
    num_heads: int,
    dtype: np.dtype[np.generic],
) -> KeyDraw:
    """Project N(0, 1) inputs with a freshly initialised `torch.nn.MultiheadAttention`, in self-attention.

    Its in_proj_weight is Xavier uniform over a matrix of 3 x hidden_size rows,
    so that Var W = 1 / (2 hidden_size) and sigma^2 = 1/2. Values are drawn
    separately from N(0, 1); only the gradients need them.

    Source: torch.nn.MultiheadAttention._reset_parameters, torch 2.13; METHOD D.4.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        module = torch.nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)
    weight, bias = (tensor.detach().numpy() for tensor in (module.in_proj_weight, module.in_proj_bias))
    hidden = rng.standard_normal((kv_seq_len, hidden_size), dtype=np.float32)
    projected = hidden @ weight[: 2 * hidden_size].T + bias[: 2 * hidden_size]
    # Axes: query or key, head, position, width.
    parts = projected.reshape(kv_seq_len, 2, num_heads, -1).transpose(1, 2, 0, 3).astype(dtype).astype(np.float32)
    queries, keys = (np.ascontiguousarray(part) for part in parts)
    return KeyDraw(heads=tuple(_with_values(rng, queries[head, :rows], keys[head], dtype) for head in range(num_heads)))


def gradient_norms(block: QueryBlock, scale: float) -> tuple[Float64, Float64]:
    """Norms of dL/dlogits and dL/dquery by torch's autograd, L = upstream . output.

    The product QK^T is float32, with a relative error of 1e-6 in the logits and
    no more in the gradients; after the logits everything is float64. In float32
    the gradient of a nearly one-hot row, w - w^2, is lost below 1e-7 of the values,
    and the median row of an unscaled softmax is below that from d_k = 1024 on.

    Args:
        block: Queries, keys, values and upstream gradients.
        scale: Factor on QK^T; the chain rule carries it into dL/dquery.

    Returns:
        Two arrays (rows,); below about 1e-15 they are rounding errors.
    """
    import torch

    query, key, value, upstream = (
        torch.from_numpy(array) for array in (block.query, block.key, block.value, block.upstream)
    )
    query = query.clone().requires_grad_()
    logits = (scale * (query @ key.T)).double()
    output = torch.softmax(logits, dim=-1) @ value.double()
    of_logits, of_query = torch.autograd.grad(output, (logits, query), upstream.double())
    return of_logits.norm(dim=1).numpy(), of_query.double().norm(dim=1).numpy()


def _with_values(rng: np.random.Generator, query: Float32, key: Float32, dtype: np.dtype[np.generic]) -> QueryBlock:
    value = rng.standard_normal((key.shape[0], V_HEAD_DIM), dtype=np.float32).astype(dtype).astype(np.float32)
    upstream = rng.standard_normal((query.shape[0], V_HEAD_DIM))
    upstream /= np.linalg.norm(upstream, axis=1, keepdims=True)
    return QueryBlock(query=query, key=key, value=value, upstream=upstream.astype(np.float32))
