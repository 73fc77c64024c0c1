"""Changes one rule of the oracle's blocks, where changed inputs cannot: visibility by position, order of keys.

Every function yields blocks like `oracle.head_blocks(spec, inputs, rows=...)`, in the same order. Computes no output.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.masks import causal_offset
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.core.faults.reading_inputs import Change

__all__ = [
    "Blocks",
    "Positions",
    "SampleSizes",
    "after_change",
    "cache_off_by_one",
    "cap_last",
    "exponent_base_two",
    "hide_keys",
    "lowest_is_hidden",
    "masked_rows",
    "newest_past_empty",
    "past_after_new",
    "reorder",
    "reposition",
    "rotated_queries",
    "value_row_zero",
]

Float64 = NDArray[np.float64]
Rows = NDArray[np.int64] | None
Blocks = Callable[..., Iterator[HeadBlock]]

# A finite bias for hidden keys, in softcaps below the scores: tanh(-40) is exactly -1 in float64.
_CAPS_BELOW = 40.0
# Of nearly all models.
_ROTARY_BASE = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSizes:
    """Sizes of one sample."""

    queries: int
    keys: int
    past: int
    nonpad: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Visibility rules by position, where they differ from the oracle's.

    Args:
        offset: Position of the first query; None = as in the oracle.
        reach: Number of keys after a query's own position that causality leaves visible.
        left, right: Number of keys by which the windows are too wide.
        causal: (rows, sizes) -> rows that are causal; the other rows attend to every key. None = all.
        valid: (keys, sizes) -> keys that are not padding; None = as in the oracle.
    """

    offset: Callable[[SampleSizes], int] | None = None
    reach: int = 0
    left: int = 0
    right: int = 0
    causal: Callable[[NDArray[np.int64], SampleSizes], NDArray[np.bool_]] | None = None
    valid: Callable[[NDArray[np.int64], SampleSizes], NDArray[np.bool_]] | None = None


def after_change(change: Change) -> Blocks:
    """Yield the oracle's blocks of changed spec and inputs."""

    def blocks(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
        return head_blocks(*change(spec, inputs), rows=rows)

    return blocks


def reposition(positions: Positions, *, without_windows: bool = False) -> Blocks:
    """Change visibility by position; the mask stays the same."""

    def blocks(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
        mask = MaskKind.NONE if spec.mask is MaskKind.LENGTHS else spec.mask
        mask_only = replace(spec, is_causal=False, left_window=-1, right_window=-1, mask=mask)
        changed = replace(spec, left_window=-1, right_window=-1) if without_windows else spec
        for block in head_blocks(mask_only, replace(inputs, nonpad_kv_seqlen=None), rows=rows):
            visible = _visible(changed, positions, block.rows, _lengths(inputs, block))
            yield replace(block, bias=np.where(visible, block.bias, -np.inf))

    return blocks


def _lengths(inputs: AttentionInputs, block: HeadBlock) -> SampleSizes:
    queries, keys = inputs.query.shape[2 if inputs.query.ndim == 4 else 1], block.key.shape[0]
    return SampleSizes(
        queries=queries,
        keys=keys,
        past=0 if inputs.past_key is None else inputs.past_key.shape[2],
        nonpad=keys if inputs.nonpad_kv_seqlen is None else int(inputs.nonpad_kv_seqlen[block.batch]),
        offset=causal_offset(inputs, batch=block.batch, q_seq_len=queries),
    )


def _visible(
    spec: AttentionSpec, positions: Positions, rows: NDArray[np.int64], lengths: SampleSizes
) -> NDArray[np.bool_]:
    """Visibility by causality, windows and lengths: (rows, keys)."""
    keys = np.arange(lengths.keys)
    position = rows[:, None] + (lengths.offset if positions.offset is None else positions.offset(lengths))
    visible = np.ones((rows.size, lengths.keys), dtype=bool)
    if spec.is_causal:
        causal = keys <= position + positions.reach
        if positions.causal is not None:
            causal |= ~positions.causal(rows, lengths)[:, None]
        visible &= causal
    if spec.left_window >= 0:
        visible &= keys >= position - spec.left_window - positions.left
    if spec.right_window >= 0:
        visible &= keys <= position + spec.right_window + positions.right
    visible &= keys < lengths.nonpad if positions.valid is None else positions.valid(keys, lengths)
    return visible


def hide_keys(which: Callable[[NDArray[np.int64], SampleSizes], NDArray[np.bool_]]) -> Blocks:
    """Hide some keys from every query.

    Args:
        which: (keys, sizes) -> True for a key to hide.
    """

    def blocks(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
        for block in head_blocks(spec, inputs, rows=rows):
            hidden = which(np.arange(block.key.shape[0]), _lengths(inputs, block))
            yield replace(block, bias=np.where(hidden, -np.inf, block.bias))

    return blocks


def past_after_new(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
    """Concatenate the new keys before the past ones; positions are not adjusted."""
    past = 0 if inputs.past_key is None else inputs.past_key.shape[2]
    for block in head_blocks(spec, inputs, rows=rows):
        yield replace(block, key=np.roll(block.key, -past, axis=0), value=np.roll(block.value, -past, axis=0))


def cache_off_by_one(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
    """Write the new keys one position too early: the newest past key is overwritten, the last position is 0."""
    past = 0 if inputs.past_key is None else inputs.past_key.shape[2]

    def shifted(array: Float64) -> Float64:
        return np.concatenate([array[: past - 1], array[past:], np.zeros_like(array[:1])])

    for block in head_blocks(spec, inputs, rows=rows):
        yield replace(block, key=shifted(block.key), value=shifted(block.value)) if past else block


def reorder(order: Callable[[SampleSizes], NDArray[np.int64]], *, keys_only: bool = False) -> Blocks:
    """Read the keys and values in another order; mask, causality and lengths keep theirs.

    Args:
        order: Sizes of a sample -> (keys,), the key at each place.
        keys_only: The values stay in their order.
    """

    def blocks(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
        for block in head_blocks(spec, inputs, rows=rows):
            places = order(_lengths(inputs, block))
            value = block.value if keys_only else block.value[places]
            yield replace(block, key=block.key[places], value=value)

    return blocks


def newest_past_empty(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
    """Replace the newest past key and value by 0, as in the cache of the step before."""
    past = 0 if inputs.past_key is None else inputs.past_key.shape[2]
    for block in head_blocks(spec, inputs, rows=rows):
        keep = (np.arange(block.key.shape[0]) != past - 1)[:, None]
        yield replace(block, key=block.key * keep, value=block.value * keep)


def rotated_queries(steps: int, *, is_interleaved: bool) -> Blocks:
    """Turn the queries by positions of a rotary embedding with base 10000 over the full width of a head.

    Args:
        steps: Positions, negative = back.
        is_interleaved: Pairs are neighbours (2i, 2i + 1), else (i, i + head_dim / 2).

    Source: J. Su et al., RoFormer, 2021.
    """

    def blocks(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
        half = spec.head_dim // 2
        angle = steps * _ROTARY_BASE ** (-np.arange(half) / half)
        cosine, sine = np.cos(angle), np.sin(angle)
        first, second = (
            (slice(0, None, 2), slice(1, None, 2)) if is_interleaved else (slice(0, half), slice(half, None))
        )
        for block in head_blocks(spec, inputs, rows=rows):
            query = np.empty_like(block.query)
            query[:, first] = block.query[:, first] * cosine - block.query[:, second] * sine
            query[:, second] = block.query[:, second] * cosine + block.query[:, first] * sine
            yield replace(block, query=query)

    return blocks


def value_row_zero(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
    """Replace the first value by 0; its key stays."""
    for block in head_blocks(spec, inputs, rows=rows):
        value = block.value.copy()
        value[:1] = 0.0
        yield replace(block, value=value)


def masked_rows(*, level: bool, bias: float, causal_only: bool = False) -> Blocks:
    """Change the output of queries without a visible key, which is zero in the oracle.

    Args:
        level: All scores count as equal.
        bias: New bias of such a row: 0 = every key is visible; NaN = the row is NaN.
        causal_only: Causality, windows and lengths still hide keys; only the mask does not.
    """

    def blocks(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
        for block in head_blocks(spec, inputs, rows=rows):
            empty = np.isneginf(block.bias.max(1, keepdims=True, initial=-np.inf))
            shown = np.full_like(block.bias, bias)
            if causal_only:
                allowed = _visible(spec, Positions(), block.rows, _lengths(inputs, block))
                shown = np.where(allowed, shown, -np.inf)
            query = np.where(empty, 0.0, block.query) if level else block.query
            yield replace(block, query=query, bias=np.where(empty, shown, block.bias))

    return blocks


def lowest_is_hidden(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
    """Treat the lowest finite number of the mask's type as hidden, so that a row of it becomes zero."""
    import ml_dtypes

    mask = inputs.attn_mask
    for block in head_blocks(spec, inputs, rows=rows):
        if mask is None or mask.dtype == np.bool_:
            yield block
            continue
        lowest = float(ml_dtypes.finfo(mask.dtype).min)  # type: ignore[no-untyped-call]
        yield replace(block, bias=np.where(block.bias <= lowest / 2.0, -np.inf, block.bias))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CapLast(HeadBlock):
    """Softcap after the mask."""

    def capped(self, scores: Float64) -> Float64:
        return scores

    def logits(self, capped: Float64) -> Float64:
        total: Float64 = self.softcap * np.tanh((capped + self.bias) / self.softcap)
        return total


def cap_last(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
    """Apply the softcap after the mask: the logit of a hidden key is -softcap."""
    for block in head_blocks(spec, inputs, rows=rows):
        # A finite bias far below the scores is capped to the same number, and the error bound stays finite.
        below = float(np.abs(block.scores()).max(initial=0.0)) + _CAPS_BELOW * block.softcap
        yield _CapLast(
            batch=block.batch,
            head=block.head,
            rows=block.rows,
            query=block.query,
            key=block.key,
            value=block.value,
            bias=np.maximum(block.bias, -below),
            scale=block.scale,
            softcap=block.softcap,
        )


def exponent_base_two(spec: AttentionSpec, inputs: AttentionInputs, *, rows: Rows = None) -> Iterator[HeadBlock]:
    """Use 2^x instead of e^x: every logit is multiplied by ln 2."""
    factor = math.log(2.0)
    for block in head_blocks(spec, inputs, rows=rows):
        yield replace(block, scale=block.scale * factor, softcap=block.softcap * factor, bias=block.bias * factor)
