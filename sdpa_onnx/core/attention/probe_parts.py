"""Building blocks of structural probes: masks with holes, coded values, queries and keys with given logits.

Arrays have the case's type, layout and shapes. Defines no probe.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs, numpy_dtype
from sdpa_onnx.core.attention.masks import attn_bias
from sdpa_onnx.core.attention.spec import AttentionCase, Layout, MaskKind

__all__ = [
    "ProbeDraft",
    "codes",
    "mask_rows",
    "one_hot",
    "random_mask",
    "with_logits",
]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

# Share of visible keys of a mask: with few keys some are hidden, with many some are visible.
_SHOWN = 0.6
# Length of a query's random part orthogonal to the keys' direction, relative to its part along it.
_ACROSS = 0.5
# Largest relative difference of a score from its target.
_UNEVEN = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDraft:
    """Unfinished inputs in float64 and BNSH, with past and new keys concatenated.

    Args:
        query: (batch_size, q_num_heads, q_seq_len, head_dim).
        key: (batch_size, kv_num_heads, total_seq_len, head_dim).
        value: (batch_size, kv_num_heads, total_seq_len, v_head_dim).
        attn_mask: As in `AttentionInputs`, or None.
        nonpad_kv_seqlen: As in `AttentionInputs`, or None.
    """

    query: Float64
    key: Float64
    value: Float64
    attn_mask: Array | None = None
    nonpad_kv_seqlen: Array | None = None

    @classmethod
    def drawn(cls, case: AttentionCase, rng: np.random.Generator, *, spread: float = 1.0) -> "ProbeDraft":
        """Draw random inputs of a case; masks and lengths hide keys, but every row keeps a visible key."""
        spec = case.spec
        plain = replace(spec, layout=Layout.BNSH, mask=MaskKind.NONE, has_past=False)
        total = replace(case, spec=plain, kv_seq_len=case.total_seq_len, past_seq_len=0)
        inputs = draw_inputs(total, spread=spread, seed=int(rng.integers(2**31)))
        return cls(
            query=inputs.query.astype(np.float64),
            key=inputs.key.astype(np.float64),
            value=inputs.value.astype(np.float64),
            attn_mask=random_mask(case, rng),
            nonpad_kv_seqlen=_lengths(case, rng),
        )

    def inputs(self, case: AttentionCase) -> AttentionInputs:
        """Round to the case's type, split past and new keys and convert to its layout."""
        dtype, past = numpy_dtype(case.dtype), case.past_seq_len
        arrays = {"query": self.query, "key": self.key[:, :, past:], "value": self.value[:, :, past:]}
        placed = {name: _placed(case, array.astype(dtype)) for name, array in arrays.items()}
        if case.spec.has_past:
            placed["past_key"] = np.ascontiguousarray(self.key[:, :, :past]).astype(dtype)
            placed["past_value"] = np.ascontiguousarray(self.value[:, :, :past]).astype(dtype)
        return AttentionInputs(
            **placed, attn_mask=self.attn_mask, nonpad_kv_seqlen=self.nonpad_kv_seqlen, quantisers=None
        )


def _placed(case: AttentionCase, array: Array) -> Array:
    if case.spec.layout is Layout.BNSH:
        return np.ascontiguousarray(array)
    batch_size, num_heads, seq_len, width = array.shape
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(batch_size, seq_len, num_heads * width)


def random_mask(case: AttentionCase, rng: np.random.Generator) -> Array | None:
    """Draw a mask that hides keys on the left, in holes, on the right and one key from every query.

    Each row keeps at least one visible key if its position allows one.
    """
    if case.mask_kind is MaskKind.NONE:
        return None
    shape = case.input_shapes()["attn_mask"]
    shown = rng.random(_four_axes(shape)) < _SHOWN
    keys = shown.shape[-1]
    if keys > 1:
        samples = shown.shape[0]
        shown[np.arange(samples), :, :, rng.integers(keys, size=samples)] = False
    _show_one(case, shown, rng)
    return _as_mask(case, shown.reshape(shape))


def _four_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (4 - len(shape)) + shape


def _show_one(case: AttentionCase, shown: Bool, rng: np.random.Generator) -> None:
    """Make a key visible in every row without one, among the keys that its position allows.

    A row that serves all queries shows a key that one of them may see; others may then see none.
    """
    allowed = _by_position(case)[:, : shown.shape[-1]]
    if shown.shape[-2] != allowed.shape[0]:
        allowed = np.asarray(allowed.any(0), dtype=np.bool_)[None]
    empty = ~(shown & allowed).any(-1)
    for batch, head, row in np.argwhere(empty):
        keys = np.flatnonzero(allowed[row])
        if keys.size:
            shown[batch, head, row, rng.choice(keys)] = True


def _by_position(case: AttentionCase) -> Bool:
    """Visibility by causality and windows, (queries, keys); lengths are left out."""
    spec = replace(case.spec, mask=MaskKind.NONE, layout=Layout.BNSH)
    empty = np.zeros((1, 1, case.past_seq_len, 1))
    arrays = AttentionInputs(query=empty, key=empty, value=empty, past_key=empty if spec.has_past else None)
    bias = attn_bias(
        spec,
        arrays,
        batch=0,
        head=0,
        rows=np.arange(case.q_seq_len),
        q_seq_len=case.q_seq_len,
        total_seq_len=case.total_seq_len,
    )
    visible: Bool = np.asarray(bias > -np.inf, dtype=np.bool_)
    return visible


def _as_mask(case: AttentionCase, shown: Bool) -> Array:
    if case.mask_kind is MaskKind.BOOL:
        return shown
    return np.where(shown, 0.0, -np.inf).astype(numpy_dtype(case.dtype))


def _lengths(case: AttentionCase, rng: np.random.Generator) -> Array | None:
    """Draw one length per sample; the first is shorter than the last if possible."""
    if case.spec.mask is not MaskKind.LENGTHS:
        return None
    half = (case.kv_seq_len + 1) // 2
    lengths = rng.integers(half, max(half + 1, case.kv_seq_len), case.batch_size)
    if case.batch_size > 1:
        lengths[-1] = case.kv_seq_len
    return lengths.astype(np.int64)


def mask_rows(draft: ProbeDraft) -> ProbeDraft:
    """Hide every key from the first, middle and last query, and from the first sample if there are several.

    If a mask has one row for all queries and samples, it is the first head whose keys are hidden.
    """
    if draft.nonpad_kv_seqlen is not None:
        lengths = draft.nonpad_kv_seqlen.copy()
        lengths[:1] = 0
        return replace(draft, nonpad_kv_seqlen=lengths)
    if draft.attn_mask is None:
        return draft
    shape = draft.attn_mask.shape
    mask = draft.attn_mask.reshape(_four_axes(shape)).copy()
    hidden: Array = np.asarray(False if mask.dtype == np.bool_ else -np.inf).astype(mask.dtype)
    samples, _, queries, _ = mask.shape
    if queries > 1:
        mask[:, :, sorted({0, queries // 2, queries - 1})] = hidden
    if samples > 1:
        mask[0] = hidden
    elif queries == 1:
        mask[:, :1] = hidden
    return replace(draft, attn_mask=mask.reshape(shape))


def codes(shape: tuple[int, ...], rng: np.random.Generator) -> Float64:
    """Draw +1 and -1 at random; both are exact in every type."""
    return rng.choice(np.array([-1.0, 1.0]), shape)


def one_hot(case: AttentionCase, rng: np.random.Generator) -> Float64:
    """Create values that show which keys are visible: column j is 1 for key j only.

    Keys beyond the width get random codes, so that they differ from each other.
    """
    total, width = case.total_seq_len, case.spec.v_head_dim
    value = codes((case.batch_size, case.spec.kv_num_heads, total, width), rng)
    value[:, :, :width] = np.eye(total, width)[:width]
    return value


def with_logits(case: AttentionCase, draft: ProbeDraft, logits: Float64, rng: np.random.Generator) -> ProbeDraft:
    """Set query and key so that the scaled score of key j is within 15 percent of its target.

    All keys are parallel. Queries differ in length and in a random part orthogonal to the keys' direction,
    because the statistical tests need independent rounding errors in different rows.

    Args:
        case: Sizes and scale; with scale 0 every score is 0.
        draft: The other inputs.
        logits: Targets, broadcastable to (batch_size, kv_num_heads, total_seq_len).
        rng: Source of the random directions.
    """
    spec = case.spec
    target = np.broadcast_to(logits, draft.key.shape[:3])
    if spec.scale_value == 0.0 or not target.size:
        return draft
    direction = codes((spec.head_dim,), rng) * rng.uniform(0.5, 1.5, spec.head_dim)
    square = float(direction @ direction)
    # Query and key get factors of the same size, so that neither leaves the range of a short type.
    size = math.sqrt((float(np.abs(target).max()) or 1.0) / (abs(spec.scale_value) * square))
    orthogonal = rng.standard_normal(draft.query.shape)
    orthogonal -= (orthogonal @ direction / square)[..., None] * direction
    key = target[..., None] * direction / (spec.scale_value * square * size)
    lengths = rng.uniform(1.0 - _UNEVEN, 1.0 + _UNEVEN, (*orthogonal.shape[:3], 1))
    return replace(draft, query=size * (lengths * direction + _ACROSS * orthogonal), key=key)
