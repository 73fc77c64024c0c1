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
    return on_blocks()(spec, AttentionInputs(**others), right, rng)


def _cached(name: OutputRole, change: Callable[[Array, int], Array]) -> Callable[..., Outputs]:
    """Create a fault that changes one present output, if it exists: (array, past length) -> array."""

    def plant(_spec: AttentionSpec, inputs: AttentionInputs, right: Outputs, _rng: Generator) -> Outputs:
        past = 0 if inputs.past_key is None else inputs.past_key.shape[2]
        return {**right, name: change(right[name].copy(), past)} if name in right else dict(right)

    return plant


def _past_after_new(present: Array, past: int) -> Array:
    return np.roll(present, -past, axis=2)


def _last_missing(present: Array, _past: int) -> Array:
    present[:, :, -1:] = 0
    return present


def _not_updated(present: Array, past: int) -> Array:
    present[:, :, past:] = 0
    return present


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

CACHE_FAULTS: tuple[Fault, ...] = tuple(
    Fault(
        name=f"{name.replace('_', '-')}-{slug}",
        says=f"{name} {says}",
        applies=when.has_past,
        plant=_cached(name, change),
        output=name,
    )
    for name in (OutputRole.PRESENT_KEY, OutputRole.PRESENT_VALUE)
    for slug, says, change in (
        ("past-after-new", "contains the new entries before the past", _past_after_new),
        ("last-missing", "lacks the newest entry", _last_missing),
        ("not-updated", "lacks the new entries", _not_updated),
    )
)

QK_FAULTS: tuple[Fault, ...] = (
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
