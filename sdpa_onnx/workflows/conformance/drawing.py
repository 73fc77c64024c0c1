"""Draw the arrays of a feature's cases from a seed: mask, lengths and poison values.

`core.attention.inputs` draws queries, keys and values. Does not run or judge the cases.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs, numpy_dtype
from sdpa_onnx.core.attention.masks import views_by_kv_head
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype, MaskKind
from sdpa_onnx.workflows.conformance.feature import Feature, MaskRows, Poison

__all__ = ["DrawnCase", "draw_cases"]

Array = NDArray[np.generic]

# Share of keys hidden by a random mask.
_HIDDEN_SHARE = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCase:
    """One case with its arrays.

    Args:
        case: Spec and sizes.
        inputs: The arrays.
        source: How the arrays were drawn: "spread 1", or the name of a probe.
        is_first: Whether it is the first case of the feature, which is also run with static shapes.
    """

    case: AttentionCase
    inputs: AttentionInputs
    source: str
    is_first: bool = False


def draw_cases(feature: Feature, dtype: Dtype, *, seed: int) -> Iterator[DrawnCase]:
    """Draw the cases of a feature; the same seed gives the same arrays."""
    for position, spec in enumerate(feature.specs):
        for size in feature.sizes:
            case = AttentionCase(spec=spec, dtype=dtype, **size._asdict())
            for step, spread in enumerate(feature.spreads):
                drawn = draw_inputs(case, spread=spread, seed=seed + step)
                rng = np.random.default_rng((seed, step, *size))
                is_first = position == step == 0 and size is feature.sizes[0]
                inputs = _with_mask_and_poison(feature, case, drawn, rng)
                yield DrawnCase(case=case, inputs=inputs, source=f"spread {spread:g}", is_first=is_first)
    if feature.probes:
        case = AttentionCase(spec=feature.specs[0], dtype=dtype, **feature.sizes[0]._asdict())
        for probe in probes_for(case.spec):
            yield DrawnCase(case=case, inputs=probe.draw(case, seed), source=probe.name)


def _with_mask_and_poison(
    feature: Feature, case: AttentionCase, drawn: AttentionInputs, rng: np.random.Generator
) -> AttentionInputs:
    inputs = drawn
    if case.spec.mask in (MaskKind.BOOL, MaskKind.FLOAT):
        inputs = replace(inputs, attn_mask=_mask(feature, case, rng))
    if feature.lengths:
        counts = np.resize(np.array(feature.lengths, dtype=np.int64), case.batch_size)
        inputs = replace(inputs, nonpad_kv_seqlen=np.minimum(counts, case.kv_seq_len))
    return _poisoned(feature.poison, case, inputs)


def _mask(feature: Feature, case: AttentionCase, rng: np.random.Generator) -> Array:
    """A mask of the feature's shape; key 0 is visible to every query unless `mask_rows` hides it."""
    spec, total = case.spec, case.total_seq_len
    lengths = {"B": case.batch_size, "H": spec.q_num_heads, "S": case.q_seq_len, "T": total, "P": total - 2, "1": 1}
    shape = tuple(lengths[axis] for axis in feature.mask_shape)
    visible = rng.random(shape) >= _HIDDEN_SHARE
    visible[..., :1] = True
    match feature.mask_rows:
        case MaskRows.RANDOM | MaskRows.LOWEST | MaskRows.LARGE:
            pass
        case MaskRows.ALL:
            visible[...] = True
        case MaskRows.HIDDEN:
            visible[..., 1::3, :] = False
        case MaskRows.SAMPLE:
            visible[-1] = False
        case MaskRows.FUTURE:
            visible[...] = np.triu(np.ones(shape[-2:], dtype=bool), case.past_seq_len + 1)
        case MaskRows.COLUMN:
            visible[..., 1] = False
        case MaskRows.RIGHT_PADDED:
            visible[...] = np.arange(total) < _padding(case, rng)
        case MaskRows.LEFT_PADDED:
            visible[...] = np.arange(total) >= total - _padding(case, rng)
    if spec.mask is MaskKind.BOOL:
        return visible
    dtype = numpy_dtype(case.dtype)
    if feature.mask_fill is not None:
        return np.where(visible, 0.0, feature.mask_fill).astype(dtype)
    additive = rng.standard_normal(shape, dtype=np.float32).astype(dtype)
    additive[~visible] = -np.inf
    fill = {MaskRows.LOWEST: _lowest(dtype), MaskRows.LARGE: -1e4}.get(feature.mask_rows)
    if fill is not None:
        additive[..., 1::3, :] = fill
    return additive


def _padding(case: AttentionCase, rng: np.random.Generator) -> NDArray[np.int64]:
    """(batch_size, 1, 1, 1): number of valid keys of each sample, at least two and never all."""
    counts = rng.integers(2, case.total_seq_len, case.batch_size)
    return counts.reshape(-1, 1, 1, 1)


def _lowest(dtype: np.dtype[np.generic]) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).min)  # type: ignore[no-untyped-call]


def _poisoned(poison: Poison, case: AttentionCase, inputs: AttentionInputs) -> AttentionInputs:
    """Write the poison into the arrays, past and new; the layout is always BNSH here."""
    if poison is Poison.NONE:
        return inputs
    hidden = views_by_kv_head(case.spec, inputs) == 0
    if poison is Poison.NAN_SEEN:
        hidden = np.zeros_like(hidden)
        hidden[:, :, 0] = True
    past = hidden.shape[2] - inputs.key.shape[2]
    # Large compared with all other numbers, and small enough that no product overflows.
    huge = 1e3 if case.dtype is Dtype.FLOAT16 else 1e6
    is_key = poison in (Poison.HUGE_KEY, Poison.NAN_KEY)
    content = huge if poison in (Poison.HUGE_KEY, Poison.HUGE_VALUE) else np.nan
    field, past_field = ("key", "past_key") if is_key else ("value", "past_value")
    array = getattr(inputs, field).copy()
    # NaN goes into one column only, so that the other columns still test the result.
    columns = slice(None) if content == huge else slice(0, 1)
    array[..., columns][hidden[:, :, past:]] = content
    changed: dict[str, Array] = {field: array}
    cached = getattr(inputs, past_field)
    if cached is not None:
        cached = cached.copy()
        cached[..., columns][hidden[:, :, :past]] = content
        changed[past_field] = cached
    return replace(inputs, **changed, quantisers=inputs.quantisers)
