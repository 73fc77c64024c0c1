"""Structural probes: inputs with exact answers that make a fault large instead of a test sharp.

The ladder of `core.attention.inputs` finds faults of arithmetic; these find faults of structure, in every dtype.
Every probe is legal: a right runtime answers it. What would ask more than the operator's text
promises (NaN in hidden keys, which 0 times NaN lets through) is left out. Only `nan-seen` holds a NaN.

Source: METHOD A.9.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sdpa_onnx.core.attention import reading_applies as when
from sdpa_onnx.core.attention.inputs import AttentionInputs, numpy_dtype
from sdpa_onnx.core.attention.probe_parts import (
    Float64,
    ProbeDraft,
    codes,
    empty_rows,
    hidden_from_all,
    one_hot,
    visible_keys,
    with_logits,
)
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind

__all__ = ["PROBES", "Probe", "find_probe", "probes_for"]

Generator = np.random.Generator

# Beyond these logits exp overflows, and below their negatives it gives 0, in the type that a softmax may work in.
_LARGE_LOGIT = {Dtype.FLOAT64: 900.0, Dtype.FLOAT32: 130.0, Dtype.BFLOAT16: 130.0, Dtype.FLOAT16: 24.0}
# Values of hidden keys: far above all others, and finite in float16.
_POISON = 30000.0
# Scaled score of a hidden key: a leak takes nearly all of the weight.
_POISON_LOGIT = 30.0
# Standard deviation of the logits that tells heads and samples apart in 8 bits of significand.
_TELLING_SPREAD = 3.0
# Scores in units of the softcap where tanh is nearly flat.
_ABOVE_CAP = 2.0
# Scaled score of the key that dominates a row.
_SHARP_LOGIT = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One structured kind of inputs.

    Args:
        name: Stable slug, such as `uniform-codes`.
        says: What it makes visible, one clause.
        applies: Whether an attention of this spec can be asked this.
        draw: (case, seed) -> arrays in the case's own type, layout and shapes (`case.input_shapes()`).
    """

    name: str
    says: str
    applies: Callable[[AttentionSpec], bool]
    draw: Callable[[AttentionCase, int], AttentionInputs]


def find_probe(name: str) -> Probe:
    """The probe of that name.

    Raises:
        KeyError: If there is none.
    """
    return {probe.name: probe for probe in PROBES}[name]


def probes_for(spec: AttentionSpec) -> tuple[Probe, ...]:
    """The probes that an attention of this spec can be asked."""
    return tuple(probe for probe in PROBES if probe.applies(spec))


def _value_shape(case: AttentionCase) -> tuple[int, ...]:
    return (case.batch_size, case.spec.kv_num_heads, case.total_seq_len, case.spec.v_head_dim)


def _key_shape(case: AttentionCase) -> tuple[int, ...]:
    return _value_shape(case)[:3]


def _uniform_codes(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    return replace(draft, query=np.zeros_like(draft.query), value=codes(_value_shape(case), rng))


def _visible_keys(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    return replace(draft, query=np.zeros_like(draft.query), value=one_hot(case, rng))


def _poison(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    hidden = hidden_from_all(case, draft)[:, None, :]
    draft = with_logits(case, draft, np.where(hidden, _POISON_LOGIT, 0.0), rng)
    value = codes(_value_shape(case), rng)
    return replace(draft, value=np.where(hidden[..., None], _POISON * value, value))


def _masked_rows(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    return empty_rows(case, replace(draft, value=rng.uniform(1.0, 2.0, _value_shape(case))))


def _lowest_mask(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    import ml_dtypes

    draft = _masked_rows(case, draft, rng)
    if draft.attn_mask is None:
        return draft
    lowest = ml_dtypes.finfo(numpy_dtype(case.dtype)).min  # type: ignore[no-untyped-call]
    mask = np.where(np.isneginf(draft.attn_mask.astype(np.float64)), lowest, draft.attn_mask)
    return replace(draft, attn_mask=mask.astype(numpy_dtype(case.dtype)))


def _graded_mask(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    draft = _uniform_codes(case, draft, rng)
    graded = 2.0 * rng.standard_normal((case.batch_size, 1, case.q_seq_len, case.total_seq_len))
    return replace(draft, attn_mask=graded.astype(numpy_dtype(case.dtype)))


def _large_logits(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    """Large positive logits in one head or sample, large negative ones in the next."""
    sign = np.where(np.indices(_key_shape(case)[:2]).sum(0) % 2, -1.0, 1.0)[..., None]
    large = _LARGE_LOGIT[case.dtype]
    return with_logits(case, draft, sign * large * rng.uniform(1.0, 1.02, _key_shape(case)), rng)


def _sharp(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    """Each query is nearly parallel to one key that it sees."""
    spec = case.spec
    if not case.total_seq_len or spec.scale_value == 0.0:
        return draft
    noise = rng.random((case.batch_size, case.q_seq_len, case.total_seq_len))
    chosen = np.where(visible_keys(case, draft), noise, -1.0).argmax(-1)
    served = np.arange(spec.q_num_heads) // spec.heads_per_kv
    samples = np.arange(case.batch_size)[:, None, None]
    like: Float64 = draft.key[samples, served[None, :, None], chosen[:, None, :]]
    length = np.maximum((like * like).sum(-1, keepdims=True), np.finfo(np.float16).tiny)
    logit = _SHARP_LOGIT * rng.uniform(0.8, 1.2, length.shape)
    return replace(draft, query=draft.query + logit / spec.scale_value * like / length)


def _score_levels(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    draft = with_logits(case, draft, rng.uniform(-2.0, 2.0, _key_shape(case)), rng)
    return replace(draft, value=codes(_value_shape(case), rng))


def _distinct_heads(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    draft = ProbeDraft.drawn(case, rng, spread=_TELLING_SPREAD)
    heads = 4.0 * np.arange(case.spec.kv_num_heads)[:, None, None]
    samples = 2.0 * np.arange(case.batch_size)[:, None, None, None]
    return replace(draft, value=draft.value + heads - samples)


def _softcap_bend(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    """Scores of two levels above the cap, which brings them together; each level has values of its own."""
    high = rng.random(_key_shape(case)) < 0.5
    draft = with_logits(case, draft, case.spec.softcap * np.where(high, _ABOVE_CAP, _ABOVE_CAP - 1.0 / 3.0), rng)
    signs = codes((case.batch_size, case.spec.kv_num_heads, 1, case.spec.v_head_dim), rng)
    return replace(draft, value=np.where(high, 1.0, -1.0)[..., None] * signs)


def _softcap_floor(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    """Every visible score capped to -softcap, so that a hidden key that is capped too weighs as much."""
    draft = _poison(case, draft, rng)
    return with_logits(case, draft, np.full(_key_shape(case), -3.0 * case.spec.softcap), rng)


def _nan_seen(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    """One NaN in a value that as many queries as possible see; none where nothing is seen.

    Behind a hidden key a NaN may come out or not.
    """
    spec = case.spec
    seen = visible_keys(case, draft).sum(axis=1)
    samples, keys = np.nonzero((seen > 0) & (seen == seen.max(initial=0)))
    if not samples.size or not spec.v_head_dim:
        return draft
    chosen = int(rng.integers(samples.size))
    value = draft.value.copy()
    head, column = int(rng.integers(spec.kv_num_heads)), int(rng.integers(spec.v_head_dim))
    value[samples[chosen], head, keys[chosen], column] = np.nan
    return replace(draft, value=value)


def _times(factor: float) -> Callable[[AttentionCase, ProbeDraft, Generator], ProbeDraft]:
    return lambda _case, draft, _rng: replace(draft, value=factor * draft.value)


def _probe(
    name: str,
    says: str,
    change: Callable[[AttentionCase, ProbeDraft, Generator], ProbeDraft],
    applies: Callable[[AttentionSpec], bool] = when.always,
) -> Probe:
    def draw(case: AttentionCase, seed: int) -> AttentionInputs:
        rng = np.random.default_rng(seed)
        return change(case, ProbeDraft.drawn(case, rng), rng).inputs(case)

    return Probe(name=name, says=says, applies=applies, draw=draw)


def _hides(spec: AttentionSpec) -> bool:
    return spec.mask is not MaskKind.NONE or when.positioned(spec)


PROBES: tuple[Probe, ...] = (
    _probe("uniform-codes", "equal weights on coded values: who sees whom, and which head is whose", _uniform_codes),
    _probe("visible-keys", "equal weights on one-hot values: the output is the set of visible keys", _visible_keys),
    _probe("distinct-heads", "heads and samples with different means: a mistaken head", _distinct_heads),
    _probe("score-levels", "scores set by hand: the scale and the softmax's base", _score_levels),
    _probe("sharp", "one key dominates each row: the order of the keys", _sharp),
    _probe("large-logits", "logits beyond the range of exp: a softmax without its maximum", _large_logits),
    _probe("small-values", "values of 0.001: an absolute tolerance", _times(1e-3)),
    _probe("large-values", "values of 1000: a relative tolerance", _times(1e3)),
    _probe("nan-seen", "NaN in one value: a NaN that does not come out", _nan_seen),
    _probe("poison", "huge values behind hidden keys: any leak", _poison, _hides),
    _probe(
        "masked-rows",
        "queries without a visible key: zero, and neither NaN nor a mean",
        _masked_rows,
        lambda spec: spec.mask is not MaskKind.NONE,
    ),
    _probe("lowest-mask", "rows of the lowest finite mask value: an ordinary bias", _lowest_mask, when.has_float_mask),
    _probe("graded-mask", "a finite mask alone makes the weights: how it is added", _graded_mask, when.has_float_mask),
    _probe("softcap-bend", "scores where the cap bends: whether it is applied", _softcap_bend, when.has_softcap),
    _probe(
        "softcap-floor",
        "scores capped to their lowest: a hidden key that is capped too",
        _softcap_floor,
        when.capped_before_hiding,
    ),
)
