"""Computes attention in float64, the reference (oracle) for every output.

Not optimised for speed; each convention is a line of its own. Works on one head's block of
queries at a time, so memory is rows x keys. Float64 errors are 2^29 times smaller than float32 ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.masks import attn_bias
from sdpa_onnx.core.attention.score_quantisers import ScoreQuantisers, quantised
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.errors import CaseError

__all__ = ["HeadBlock", "OracleResult", "QkOutputMode", "attend", "head_blocks", "split_heads"]

Float64 = NDArray[np.float64]
Array = NDArray[np.generic]

# Largest number of rows x keys elements of one block (16 MiB of float64).
_BLOCK_ELEMENTS = 2**21
_NOT_QUANTISED = ScoreQuantisers()


class QkOutputMode(IntEnum):
    """Stage of the scores that ONNX Attention's fourth output contains.

    Source: qk_matmul_output_mode, onnx 1.23 (1 and 2 swapped by onnx PR 7913).
    """

    SCORES = 0
    AFTER_SOFTCAP = 1
    AFTER_MASK = 2
    WEIGHTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadBlock:
    """A block of queries of one head with all inputs of their softmax, in float64.

    Args:
        batch, head: Indices of the sample and the query head.
        rows: (n,), indices of the queries.
        query: (n, head_dim).
        key: (total_seq_len, head_dim), past first.
        value: (total_seq_len, v_head_dim), past first.
        bias: (n, total_seq_len), 0, a float, or -inf.
        scale: Factor on QK^T.
        softcap: 0.0 = off.
        quantisers: How the graph rounds scores and weights to integers; it does not by default.
    """

    batch: int
    head: int
    rows: NDArray[np.int64]
    query: Float64
    key: Float64
    value: Float64
    bias: Float64
    scale: float
    softcap: float
    quantisers: ScoreQuantisers = _NOT_QUANTISED

    def scores(self) -> Float64:
        """Compute scale * query key^T, before softcap and mask: (n, total_seq_len)."""
        with np.errstate(over="ignore", invalid="ignore"):  # of infinite inputs
            product = quantised(self.query @ self.key.T, self.quantisers.product)
            return quantised(self.scale * product, self.quantisers.scaled)

    def capped(self, scores: Float64) -> Float64:
        """Compute softcap * tanh(scores / softcap), or return the scores if the softcap is off."""
        return self.softcap * np.tanh(scores / self.softcap) if self.softcap else scores

    def logits(self, capped: Float64) -> Float64:
        """Add the bias; the logit of a hidden key is -inf whatever its score is, unless logits are quantised."""
        with np.errstate(over="ignore", invalid="ignore"):
            masked = np.where(np.isneginf(self.bias), -np.inf, capped + self.bias)
        return quantised(masked, self.quantisers.masked)

    def weights(self, logits: Float64) -> Float64:
        """Compute the softmax of the logits."""
        return quantised(softmax(logits), self.quantisers.weights)

    @property
    def visible(self) -> NDArray[np.bool_]:
        """(n, total_seq_len), False where the softmax gives a key no weight whatever its score is."""
        return ~np.isneginf(self.bias) | bool(self.quantisers.masked)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleResult:
    """The outputs of attention, in float64 and the spec's layout.

    Args:
        output: Shape of the query, with v_head_dim per head in the last axis.
        present_key: (batch_size, kv_num_heads, total_seq_len, head_dim).
        present_value: (batch_size, kv_num_heads, total_seq_len, v_head_dim).
        qk: (batch_size, q_num_heads, q_seq_len, total_seq_len), or None if not requested.
    """

    output: Float64
    present_key: Float64
    present_value: Float64
    qk: Float64 | None


def attend(spec: AttentionSpec, inputs: AttentionInputs, *, qk_mode: QkOutputMode | None = None) -> OracleResult:
    """Compute attention in float64.

    The output of a query with no visible key is zero.

    Args:
        spec: The attention to compute.
        inputs: The arrays exactly as the runtime received them.
        qk_mode: Also return this stage of the scores.

    Raises:
        CaseError: If the arrays do not fit the spec.

    Source: softmax(QK^T / sqrt(d_k)) V, Vaswani et al. 2017, equation 1; the
        conventions of ONNX Attention, opset 25.

    Example:
        Weights 0.25 and 0.75 on the values 2 and 6 give 5:

        >>> spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1)
        >>> column = lambda *numbers: np.array(numbers, float).reshape(1, 1, -1, 1)
        >>> inputs = AttentionInputs(query=column(1), key=column(0, np.log(3)), value=column(2, 6))
        >>> round(float(attend(spec, inputs).output.item()), 12)
        5.0
    """
    query, key, value = split_heads(spec, inputs)
    output = np.zeros((*query.shape[:3], value.shape[3]))
    qk = None if qk_mode is None else np.zeros((*query.shape[:3], key.shape[2]))
    for block in head_blocks(spec, inputs):
        scores = block.scores()
        capped = block.capped(scores)
        logits = block.logits(capped)
        weights = block.weights(logits)
        with np.errstate(over="ignore", invalid="ignore"):
            output[block.batch, block.head, block.rows] = weights @ block.value
        if qk is not None and qk_mode is not None:
            stages = (scores, capped, logits, weights)
            qk[block.batch, block.head, block.rows] = stages[qk_mode]
    if spec.layout is Layout.BSH:
        batch_size, num_heads, q_seq_len, width = output.shape
        output = output.transpose(0, 2, 1, 3).reshape(batch_size, q_seq_len, num_heads * width)
    return OracleResult(output=output, present_key=key, present_value=value, qk=qk)


def softmax(logits: Float64) -> Float64:
    """Compute the softmax over the last axis; zero for a row of -inf.

    Args:
        logits: (rows, keys).
    """
    if logits.shape[-1] == 0:
        return logits
    highest = logits.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, as it should be
        weights = np.exp(logits - np.where(np.isneginf(highest), 0.0, highest))
        total = weights.sum(-1, keepdims=True)
        normalised: Float64 = weights / np.where(total == 0.0, 1.0, total)
    return normalised


def split_heads(spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Float64, Float64, Float64]:
    """Convert query, key and value to 4-D BNSH float64, with the cache concatenated before the new keys.

    Raises:
        CaseError: If the shapes do not fit the spec or each other.
    """
    query = _bnsh(spec, inputs.query, spec.q_num_heads, spec.head_dim, "query")
    key = _bnsh(spec, inputs.key, spec.kv_num_heads, spec.head_dim, "key")
    value = _bnsh(spec, inputs.value, spec.kv_num_heads, spec.v_head_dim, "value")
    if inputs.past_key is not None and inputs.past_value is not None:
        past_key, past_value = inputs.past_key.astype(np.float64), inputs.past_value.astype(np.float64)
        _require_past(past_key, key, "past_key")
        _require_past(past_value, value, "past_value")
        key, value = np.concatenate([past_key, key], axis=2), np.concatenate([past_value, value], axis=2)
    elif inputs.past_key is not None or inputs.past_value is not None:
        raise CaseError("past_key and past_value must be given together.")
    if not (query.shape[0] == key.shape[0] == value.shape[0] and key.shape[2] == value.shape[2]):
        raise CaseError(
            f"query {inputs.query.shape}, key {inputs.key.shape} and value {inputs.value.shape} do not match.",
            hint="Batch sizes must be equal, and key and value must have the same length.",
        )
    _require_masks(inputs, (*query.shape[:3], key.shape[2]))
    return query, key, value


def _require_past(past: Float64, new: Float64, name: str) -> None:
    if past.ndim != 4 or (past.shape[:2], past.shape[3]) != (new.shape[:2], new.shape[3]):
        expected = (*new.shape[:2], "past_seq_len", new.shape[3])
        raise CaseError(f"{name} has shape {past.shape}, expected ({', '.join(map(str, expected))}).")


def _require_masks(inputs: AttentionInputs, scores: tuple[int, ...]) -> None:
    """Raise if the mask does not broadcast to the scores or there is not one length per sample."""
    if inputs.attn_mask is not None:
        full = (1,) * (4 - inputs.attn_mask.ndim) + inputs.attn_mask.shape
        fits = len(full) == 4 and all(
            size in (1, expected) for size, expected in zip(full[:3], scores[:3], strict=True)
        )
        if not fits or full[3] > scores[3]:
            raise CaseError(f"attn_mask has shape {inputs.attn_mask.shape}, which does not broadcast to {scores}.")
    lengths = inputs.nonpad_kv_seqlen
    if lengths is not None and lengths.shape != scores[:1]:
        raise CaseError(f"nonpad_kv_seqlen has shape {lengths.shape}, expected {scores[:1]}.")


def head_blocks(
    spec: AttentionSpec, inputs: AttentionInputs, *, rows: NDArray[np.int64] | None = None
) -> Iterator[HeadBlock]:
    """Iterate over an attention in blocks of queries of one head.

    Args:
        spec: The attention to compute.
        inputs: The arrays.
        rows: Indices of the queries to compute for every head; None = all.
    """
    query, key, value = split_heads(spec, inputs)
    q_seq_len, total_seq_len = query.shape[2], key.shape[2]
    all_rows = np.arange(q_seq_len) if rows is None else rows
    step = max(1, _BLOCK_ELEMENTS // max(1, total_seq_len))
    for batch in range(query.shape[0]):
        for head in range(query.shape[1]):
            for start in range(0, all_rows.size, step):
                block_rows = all_rows[start : start + step]
                yield HeadBlock(
                    batch=batch,
                    head=head,
                    rows=block_rows,
                    query=query[batch, head, block_rows],
                    key=key[batch, head // spec.heads_per_kv],
                    value=value[batch, head // spec.heads_per_kv],
                    bias=attn_bias(
                        spec,
                        inputs,
                        batch=batch,
                        head=head,
                        rows=block_rows,
                        q_seq_len=q_seq_len,
                        total_seq_len=total_seq_len,
                    ),
                    scale=spec.scale_value,
                    softcap=spec.softcap,
                    quantisers=inputs.quantisers or _NOT_QUANTISED,
                )


def _bnsh(spec: AttentionSpec, array: Array, num_heads: int, width: int, name: str) -> Float64:
    rank = 4 if spec.layout is Layout.BNSH else 3
    fits = array.ndim == rank and (
        array.shape[1] == num_heads and array.shape[3] == width if rank == 4 else array.shape[2] == num_heads * width
    )
    if not fits:
        raise CaseError(
            f"{name} has shape {array.shape}, which does not fit {num_heads} heads of width {width} "
            f"in layout {spec.layout}."
        )
    if rank == 3:
        array = array.reshape(array.shape[0], array.shape[1], num_heads, width).transpose(0, 2, 1, 3)
    return array.astype(np.float64)
