"""Planted faults in outputs: elements, buffers and layout of the output, the cache, the qk output.

Produces outputs only; judges none.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention import spec_conditions as when
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import QkOutputMode, attend
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.core.faults.fault_kind import Fault, Outputs, on_blocks, on_output

__all__ = ["CACHE_FAULTS", "OUTPUT_FAULTS", "QK_FAULTS"]

Array = NDArray[np.generic]
Generator = np.random.Generator

# Factor on the one element that is slightly wrong.
_SLIGHT = 1.01


def _large_element(output: Array, rng: Generator) -> tuple[int, ...] | None:
    """Pick an element that is not small; None if all are 0 or NaN."""
    size = np.nan_to_num(np.abs(output.astype(np.float64)))
    if not size.any():
        return None
    return tuple(int(index) for index in rng.choice(np.argwhere((size >= np.median(size)) & (size > 0.0))))


def _one_scaled(_: AttentionSpec, output: Array, rng: Generator) -> Array:
    place = _large_element(output, rng)
    if place is not None:
        output[place] = output.dtype.type(float(output[place]) * _SLIGHT)
    return output


def _one_replaced(_: AttentionSpec, output: Array, rng: Generator) -> Array:
    place = _large_element(output, rng)
    if place is not None:
        output[place] = output.dtype.type(-2.0 * float(output[place]))
    return output


def _one_nan(_: AttentionSpec, output: Array, rng: Generator) -> Array:
    if output.size:
        output.flat[int(rng.integers(output.size))] = np.nan
    return output


def _last_query_unwritten(_: AttentionSpec, output: Array, _rng: Generator) -> Array:
    output[:, :, -1:] = 0
    return output


def _uninitialised(_: AttentionSpec, output: Array, rng: Generator) -> Array:
    """Leave the last quarter of the queries unwritten: arbitrary bits in odd columns, zeros in even ones."""
    if not output.size:
        return output
    rows = output[:, :, output.shape[2] - (output.shape[2] + 3) // 4 :]
    bits = np.frombuffer(rng.bytes(rows.size * output.dtype.itemsize), dtype=output.dtype).reshape(rows.shape)
    # Bits that form a NaN are left out; the fault one-element-nan covers them.
    with np.errstate(invalid="ignore"):  # signalling NaN
        kept = np.isfinite(bits) & (np.arange(rows.shape[3]) % 2 == 1)
    rows[...] = np.where(kept, bits, output.dtype.type(0))
    return output


def _transposed(_: AttentionSpec, output: Array, _rng: Generator) -> Array:
    """Swap heads and queries in memory."""
    return np.ascontiguousarray(output.transpose(0, 2, 1, 3)).reshape(output.shape)


def _columns_reversed(_: AttentionSpec, output: Array, _rng: Generator) -> Array:
    return output[..., ::-1]


def _stale(spec: AttentionSpec, inputs: AttentionInputs, right: Outputs, rng: Generator) -> Outputs:
    """Return the outputs of an earlier run with other inputs of the same shapes."""
    others = {}
    for name, array in inputs.named().items():
        if name in ("attn_mask", "nonpad_kv_seqlen"):
            others[name] = array
            continue
        others[name] = rng.standard_normal(array.shape).astype(array.dtype)
    return on_blocks()(spec, AttentionInputs(**others, quantisers=inputs.quantisers), right, rng)


def _changed(role: OutputRole, change: Callable[[Array, int], Array]) -> Callable[..., Outputs]:
    """Create a fault that changes one output, if it exists: (array, past length) -> array."""

    def plant(_spec: AttentionSpec, inputs: AttentionInputs, right: Outputs, _rng: Generator) -> Outputs:
        past = 0 if inputs.past_key is None else inputs.past_key.shape[2]
        return {**right, role: change(right[role].copy(), past)} if role in right else dict(right)

    return plant


def _past_after_new(present: Array, past: int) -> Array:
    return np.roll(present, -past, axis=-2)


def _last_missing(present: Array, _past: int) -> Array:
    present[..., -1:, :] = 0
    return present


def _not_updated(present: Array, past: int) -> Array:
    present[..., past:, :] = 0
    return present


def _stale_past(present: Array, past: int) -> Array:
    """The past is one step old: each entry is the one before it."""
    present[..., 1:past, :] = present[..., : max(0, past - 1), :].copy()
    return present


def _past_of_first(present: Array, past: int) -> Array:
    """Axis -4 is the batch, also of a packed cache."""
    present[..., :past, :] = np.take(present, [0], axis=-4)[..., :past, :] if present.shape[-4] else 0
    return present


def _heads_reversed(present: Array, _past: int) -> Array:
    return np.ascontiguousarray(np.flip(present, axis=-3))


def _zero(array: Array, _past: int) -> Array:
    return np.zeros_like(array)


def _nan(array: Array, _past: int) -> Array:
    return np.full_like(array, np.nan)


def _copied_from(role: OutputRole, other: OutputRole) -> Callable[..., Outputs]:
    """Create a fault that returns keys for values, or values for keys, if their widths are equal."""

    def plant(_spec: AttentionSpec, _inputs: AttentionInputs, right: Outputs, _rng: Generator) -> Outputs:
        own, source = right.get(role), right.get(other)
        fits = own is not None and source is not None and own.shape == source.shape
        return {**right, role: source} if fits and source is not None else dict(right)

    return plant


def _restaged(other: dict[QkOutputMode, QkOutputMode]) -> Callable[..., Outputs]:
    """Create a fault that returns another stage of the scores; the requested stage is inferred from the numbers."""

    def plant(spec: AttentionSpec, inputs: AttentionInputs, right: Outputs, _rng: Generator) -> Outputs:
        if OutputRole.QK not in right:
            return dict(right)
        requested = np.nan_to_num(right[OutputRole.QK].astype(np.float64), neginf=-1e30)
        distances = {}
        for mode in QkOutputMode:
            stage = np.nan_to_num(_stage(spec, inputs, mode), neginf=-1e30)
            distances[mode] = float(np.abs(np.maximum(stage, -1e30) - np.maximum(requested, -1e30)).max(initial=0.0))
        nearest = min(distances, key=lambda mode: distances[mode])
        returned = _stage(spec, inputs, other.get(nearest, nearest))
        with np.errstate(over="ignore"):
            return {**right, OutputRole.QK: returned.astype(right[OutputRole.QK].dtype)}

    return plant


def _stage(spec: AttentionSpec, inputs: AttentionInputs, mode: QkOutputMode) -> NDArray[np.float64]:
    qk = attend(spec, inputs, qk_mode=mode).qk
    return np.zeros(0) if qk is None else qk


def _fault(name: str, says: str, change: Callable[[AttentionSpec, Array, Generator], Array]) -> Fault:
    return Fault(name=name, says=says, applies=when.always, plant=on_output(change))


OUTPUT_FAULTS: tuple[Fault, ...] = (
    _fault("one-element-slightly-off", "one element is 1.01 times the right one", _one_scaled),
    _fault("one-element-replaced", "one element is another number", _one_replaced),
    _fault("one-element-nan", "one element is NaN", _one_nan),
    _fault("output-zero", "nothing is written: the output is zero", lambda _, output, _rng: np.zeros_like(output)),
    _fault("last-query-unwritten", "the last query's output is zero", _last_query_unwritten),
    _fault("uninitialised-memory", "the last quarter of the output is uninitialised memory", _uninitialised),
    _fault("columns-reversed", "the columns of the output are in reverse order", _columns_reversed),
    Fault(
        name="output-transposed",
        says="heads and queries of the output are confused",
        applies=when.several_heads,
        plant=on_output(_transposed),
    ),
    Fault(name="output-stale", says="the output of an earlier run is returned", applies=when.always, plant=_stale),
)

_CACHES = (OutputRole.PRESENT_KEY, OutputRole.PRESENT_VALUE, OutputRole.PRESENT)

CACHE_FAULTS: tuple[Fault, ...] = (
    *(
        Fault(
            name=f"{role.replace('_', '-')}-{slug}",
            says=f"{role} {says}",
            applies=applies,
            plant=_changed(role, change),
            output=role,
        )
        for role in _CACHES
        for slug, says, applies, change in (
            ("zero", "is zero", when.always, _zero),
            ("nan", "is NaN", when.always, _nan),
            ("heads-reversed", "holds its heads in reverse order", when.several_kv_heads, _heads_reversed),
            ("past-after-new", "contains the new entries before the past", when.has_past, _past_after_new),
            ("last-missing", "lacks the newest entry", when.has_past, _last_missing),
            ("not-updated", "lacks the new entries", when.has_past, _not_updated),
            ("past-stale", "holds a past that is one step old", when.has_past, _stale_past),
            (
                "past-of-first-sample",
                "holds the past of the first sample for all",
                when.has_past,
                _past_of_first,
            ),
        )
    ),
    Fault(
        name="present-key-swapped",
        says="present_key holds the values",
        applies=when.always,
        plant=_copied_from(OutputRole.PRESENT_KEY, OutputRole.PRESENT_VALUE),
        output=OutputRole.PRESENT_KEY,
    ),
    Fault(
        name="present-value-swapped",
        says="present_value holds the keys",
        applies=when.always,
        plant=_copied_from(OutputRole.PRESENT_VALUE, OutputRole.PRESENT_KEY),
        output=OutputRole.PRESENT_VALUE,
    ),
    Fault(
        name="present-swapped",
        says="present holds the values before the keys",
        applies=when.always,
        plant=_changed(OutputRole.PRESENT, lambda present, _: np.ascontiguousarray(present[::-1])),
        output=OutputRole.PRESENT,
    ),
)

QK_FAULTS: tuple[Fault, ...] = (
    *(
        Fault(name=f"qk-{slug}", says=f"qk_matmul_output {says}", applies=applies, plant=plant, output=OutputRole.QK)
        for slug, says, applies, plant in (
            ("zero", "is zero", when.always, _changed(OutputRole.QK, _zero)),
            ("nan", "is NaN", when.always, _changed(OutputRole.QK, _nan)),
            (
                "heads-reversed",
                "holds its heads in reverse order",
                when.several_heads,
                _changed(OutputRole.QK, _heads_reversed),
            ),
        )
    ),
    Fault(
        name="qk-softcap-and-mask-swapped",
        says="qk_matmul_output_mode 1 and 2 are swapped",
        applies=lambda spec: spec.mask is not MaskKind.NONE or when.positioned(spec),
        plant=_restaged(
            {
                QkOutputMode.AFTER_SOFTCAP: QkOutputMode.AFTER_MASK,
                QkOutputMode.AFTER_MASK: QkOutputMode.AFTER_SOFTCAP,
                # Without a softcap, modes 0 and 1 hold the same numbers.
                QkOutputMode.SCORES: QkOutputMode.AFTER_MASK,
            }
        ),
        output=OutputRole.QK,
    ),
    Fault(
        name="qk-scores-and-weights-swapped",
        says="qk_matmul_output contains the weights instead of the scores, or the scores instead of the weights",
        applies=when.always,
        plant=_restaged(
            {
                QkOutputMode.SCORES: QkOutputMode.WEIGHTS,
                QkOutputMode.AFTER_SOFTCAP: QkOutputMode.WEIGHTS,
                QkOutputMode.AFTER_MASK: QkOutputMode.WEIGHTS,
                QkOutputMode.WEIGHTS: QkOutputMode.SCORES,
            }
        ),
        output=OutputRole.QK,
    ),
)
