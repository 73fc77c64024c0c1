"""Structural probes: inputs with known answers, on which a structural fault causes a large error in every dtype.

The random inputs of `core.attention.inputs` find arithmetic faults. Every probe is valid input, and a correct
runtime passes it. No probe requires more than the operator's specification does: a NaN behind a hidden key is left
out, because 0 times NaN is NaN. Only `nan-seen` contains a NaN. Computes no attention and decides no verdict.

Source: METHOD A.9.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sdpa_onnx.core.attention import spec_conditions as when
from sdpa_onnx.core.attention.inputs import AttentionInputs, numpy_dtype
from sdpa_onnx.core.attention.masks import views_by_kv_head, visible_keys
from sdpa_onnx.core.attention.probe_parts import (
    Float64,
    ProbeDraft,
    codes,
    mask_rows,
    one_hot,
    with_logits,
)
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind

__all__ = ["PROBES", "Probe", "probes_for"]

Generator = np.random.Generator

# Above these logits exp overflows and below their negatives it is 0, in the type that a softmax may compute in.
_LARGE_LOGIT = {Dtype.FLOAT64: 900.0, Dtype.FLOAT32: 130.0, Dtype.BFLOAT16: 130.0, Dtype.FLOAT16: 24.0}
# Values of hidden keys: much larger than all others, and finite in float16.
_POISON = 30000.0
# Scaled score of a hidden key: if it leaks, it gets nearly all of the weight.
_POISON_LOGIT = 30.0
# Standard deviation of the logits at which heads and samples differ in 8 bits of significand.
_DISTINCT_SPREAD = 3.0
# Scores in units of the softcap where tanh is nearly flat.
_ABOVE_CAP = 2.0
# Scaled score of the key that dominates a row.
_SHARP_LOGIT = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One kind of structured inputs.

    Args:
        name: Stable slug, such as `uniform-codes`.
        says: What the probe tests, one clause.
        applies: Whether the probe can test an attention of this spec.
        draw: (case, seed) -> arrays in the case's type, layout and shapes (`case.input_shapes()`).
    """

    name: str
    says: str
    applies: Callable[[AttentionSpec], bool]
    draw: Callable[[AttentionCase, int], AttentionInputs]


def probes_for(spec: AttentionSpec) -> tuple[Probe, ...]:
    """Return the probes that can test an attention of this spec."""
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
    hidden = views_by_kv_head(case.spec, draft.inputs(case)) == 0
    draft = with_logits(case, draft, np.where(hidden, _POISON_LOGIT, 0.0), rng)
    value = codes(_value_shape(case), rng)
    return replace(draft, value=np.where(hidden[..., None], _POISON * value, value))


def _masked_rows(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    return mask_rows(replace(draft, value=rng.uniform(1.0, 2.0, _value_shape(case))))


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
    graded = 2.0 * rng.standard_normal(case.input_shapes()["attn_mask"])
    return replace(draft, attn_mask=graded.astype(numpy_dtype(case.dtype)))


def _large_logits(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    """Large positive logits in one head or sample, large negative ones in the next."""
    sign = np.where(np.indices(_key_shape(case)[:2]).sum(0) % 2, -1.0, 1.0)[..., None]
    large = _LARGE_LOGIT[case.dtype]
    return with_logits(case, draft, sign * large * rng.uniform(1.0, 1.02, _key_shape(case)), rng)


def _sharp(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    """Make each query nearly parallel to one of its visible keys."""
    spec = case.spec
    if not case.total_seq_len or spec.scale_value == 0.0:
        return draft
    visible = visible_keys(case.spec, draft.inputs(case))
    chosen = np.where(visible, rng.random(visible.shape), -1.0).argmax(-1)
    served = np.arange(spec.q_num_heads) // spec.heads_per_kv
    samples = np.arange(case.batch_size)[:, None, None]
    target: Float64 = draft.key[samples, served[None, :, None], chosen]
    square = np.maximum((target * target).sum(-1, keepdims=True), np.finfo(np.float16).tiny)
    logit = _SHARP_LOGIT * rng.uniform(0.8, 1.2, square.shape)
    return replace(draft, query=draft.query + logit / spec.scale_value * target / square)


def _score_levels(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    draft = with_logits(case, draft, rng.uniform(-2.0, 2.0, _key_shape(case)), rng)
    return replace(draft, value=codes(_value_shape(case), rng))


def _distinct_heads(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    draft = ProbeDraft.drawn(case, rng, spread=_DISTINCT_SPREAD)
    heads = 4.0 * np.arange(case.spec.kv_num_heads)[:, None, None]
    samples = 2.0 * np.arange(case.batch_size)[:, None, None, None]
    return replace(draft, value=draft.value + heads - samples)


def _softcap_bend(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    """Set scores to two levels near or above the cap, which it maps close together; values differ by level."""
    high = rng.random(_key_shape(case)) < 0.5
    draft = with_logits(case, draft, case.spec.softcap * np.where(high, _ABOVE_CAP, _ABOVE_CAP - 1.0 / 3.0), rng)
    signs = codes((case.batch_size, case.spec.kv_num_heads, 1, case.spec.v_head_dim), rng)
    return replace(draft, value=np.where(high, 1.0, -1.0)[..., None] * signs)


def _softcap_floor(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    """Cap every visible score to -softcap, so that a hidden key that is capped too gets the same weight."""
    draft = _poison(case, draft, rng)
    return with_logits(case, draft, np.full(_key_shape(case), -3.0 * case.spec.softcap), rng)


def _nan_seen(case: AttentionCase, draft: ProbeDraft, rng: Generator) -> ProbeDraft:
    """Put one NaN into a value that is visible to as many queries as possible; none if no key is visible.

    A NaN behind a hidden key may or may not reach the output.
    """
    spec = case.spec
    seen = views_by_kv_head(case.spec, draft.inputs(case))
    samples, heads, keys = np.nonzero((seen > 0) & (seen == seen.max(initial=0)))
    if not samples.size or not spec.v_head_dim:
        return draft
    chosen = int(rng.integers(samples.size))
    value = draft.value.copy()
    value[samples[chosen], heads[chosen], keys[chosen], int(rng.integers(spec.v_head_dim))] = np.nan
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
    _probe(
        "uniform-codes", "equal weights on coded values: visible keys and the head mapping are right", _uniform_codes
    ),
    _probe("visible-keys", "equal weights on one-hot values: the output is the set of visible keys", _visible_keys),
    _probe("distinct-heads", "heads and samples with different means: no head is mistaken", _distinct_heads),
    _probe("score-levels", "given scores: the scale and the base of the softmax are right", _score_levels),
    _probe("sharp", "one key dominates each row: the order of the keys is right", _sharp),
    _probe("large-logits", "logits beyond the range of exp: the softmax subtracts the maximum", _large_logits),
    _probe("small-values", "values of 0.001: errors below an absolute tolerance are found", _times(1e-3)),
    _probe("large-values", "values of 1000: errors below a relative tolerance are found", _times(1e3)),
    _probe("nan-seen", "NaN in one value: it reaches the output", _nan_seen),
    _probe("poison", "huge values behind hidden keys: nothing leaks", _poison, _hides),
    _probe(
        "masked-rows",
        "queries without a visible key: the output is zero, not NaN and not a mean",
        _masked_rows,
        lambda spec: spec.mask is not MaskKind.NONE,
    ),
    _probe(
        "lowest-mask",
        "rows of the lowest finite mask value: it is added like any bias",
        _lowest_mask,
        when.has_float_mask,
    ),
    _probe(
        "graded-mask",
        "only a finite mask determines the weights: it is added without a factor",
        _graded_mask,
        when.has_float_mask,
    ),
    _probe("softcap-bend", "scores near the softcap: it is applied", _softcap_bend, when.has_softcap),
    _probe(
        "softcap-floor",
        "scores capped to -softcap: a hidden key is not capped too",
        _softcap_floor,
        when.capped_before_hiding,
    ),
)
