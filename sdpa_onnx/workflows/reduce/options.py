"""Propose cases with fewer options than a failing one: no mask, no cache, no softcap, default layout and type.

Does not run a case: `ReductionTrials` checks whether it still fails.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from sdpa_onnx.core.attention.inputs import AttentionInputs, numpy_dtype
from sdpa_onnx.core.attention.spec import Dtype, Layout, MaskKind, ScaleRule
from sdpa_onnx.workflows.check.case_trial import CaseTrial
from sdpa_onnx.workflows.reduce.case import targets
from sdpa_onnx.workflows.reduce.cut_arrays import cut, heads_apart, in_layout

__all__ = ["OPTION_PASSES", "differences"]

OptionPass = Callable[[CaseTrial], Iterator[CaseTrial]]


def _with_spec(trial: CaseTrial, **changes: object) -> CaseTrial:
    spec = replace(trial.case.spec, **changes)  # type: ignore[arg-type]  # the callers name the fields below
    return replace(trial, case=replace(trial.case, spec=spec))


def _without_mask(trial: CaseTrial) -> Iterator[CaseTrial]:
    """Remove the mask and the lengths, or one of the two."""
    if trial.case.spec.mask is MaskKind.NONE:
        return
    inputs = trial.draw()
    bare = replace(inputs, attn_mask=None, nonpad_kv_seqlen=None)
    yield replace(_with_spec(trial, mask=MaskKind.NONE), inputs=bare)
    both = inputs.attn_mask is not None and inputs.nonpad_kv_seqlen is not None
    if both and trial.graph is None:  # the spec then has only the lengths
        yield replace(trial, inputs=replace(inputs, attn_mask=None))
        kind = MaskKind.BOOL if np.asarray(inputs.attn_mask).dtype == np.bool_ else MaskKind.FLOAT
        yield replace(_with_spec(trial, mask=kind), inputs=replace(inputs, nonpad_kv_seqlen=None))


def _without_scores(trial: CaseTrial) -> Iterator[CaseTrial]:
    """Remove the fourth output, the scores."""
    if trial.qk_mode is not None and trial.graph is None:
        yield replace(trial, qk_mode=None)


def _broadcast_mask(trial: CaseTrial) -> Iterator[CaseTrial]:
    """Broadcast the mask to the shape that every runtime accepts."""
    mask = trial.draw().attn_mask
    if mask is None:
        return
    case = trial.case
    shape = (case.batch_size, 1, case.q_seq_len, case.total_seq_len)
    full = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if mask.shape == shape or full.shape[1] != 1 or full.shape[3] != shape[3]:
        return
    yield replace(trial, inputs=replace(trial.draw(), attn_mask=np.ascontiguousarray(np.broadcast_to(full, shape))))


def _without_past(trial: CaseTrial) -> Iterator[CaseTrial]:
    """Remove the cache, or turn its keys and values into new ones."""
    if not trial.case.spec.has_past:
        return
    empty = cut(trial, "past_seq_len", np.arange(0))
    yield _without_past_inputs(empty)
    spec, inputs = trial.case.spec, trial.draw()
    arrays = heads_apart(spec, inputs.named())
    joined = {name: np.concatenate([arrays[f"past_{name}"], arrays[name]], 2) for name in ("key", "value")}
    merged = AttentionInputs(**in_layout(spec, {**arrays, **joined}), quantisers=None)
    case = replace(trial.case, kv_seq_len=trial.case.total_seq_len, past_seq_len=0)
    yield _without_past_inputs(replace(trial, case=case, inputs=merged))


def _without_past_inputs(trial: CaseTrial) -> CaseTrial:
    inputs = replace(trial.draw(), past_key=None, past_value=None)
    return replace(_with_spec(trial, has_past=False), inputs=inputs)


def _fewer_attributes(trial: CaseTrial) -> Iterator[CaseTrial]:
    spec = trial.case.spec
    if spec.softcap:
        yield _with_spec(trial, softcap=0.0)
    if spec.left_window >= 0:
        yield _with_spec(trial, left_window=-1)
    if spec.right_window >= 0:
        yield _with_spec(trial, right_window=-1)
    if spec.is_causal:
        yield _with_spec(trial, is_causal=False)
    if spec.scale != ScaleRule.INVERSE_SQRT:
        yield _with_spec(trial, scale=ScaleRule.INVERSE_SQRT)


def _smaller_windows(trial: CaseTrial) -> Iterator[CaseTrial]:
    for name in ("left_window", "right_window"):
        for target in targets(getattr(trial.case.spec, name), 0):
            yield _with_spec(trial, **{name: target})


def _bnsh_layout(trial: CaseTrial) -> Iterator[CaseTrial]:
    if trial.case.spec.layout is Layout.BNSH:
        return
    arrays = heads_apart(trial.case.spec, trial.draw().named())
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    yield replace(_with_spec(trial, layout=Layout.BNSH), inputs=AttentionInputs(**contiguous, quantisers=None))


def _float32(trial: CaseTrial) -> Iterator[CaseTrial]:
    if trial.case.dtype is Dtype.FLOAT32:
        return
    old, new = numpy_dtype(trial.case.dtype), numpy_dtype(Dtype.FLOAT32)
    arrays = {name: array.astype(new) if array.dtype == old else array for name, array in trial.draw().named().items()}
    yield replace(
        trial, case=replace(trial.case, dtype=Dtype.FLOAT32), inputs=AttentionInputs(**arrays, quantisers=None)
    )


def _lowest_opset(trial: CaseTrial) -> Iterator[CaseTrial]:
    least = trial.least_opset
    if trial.form == "attention" and trial.graph is None and trial.used_opset > least:
        yield replace(trial, opset=least)


OPTION_PASSES: tuple[OptionPass, ...] = (
    _without_scores,
    _without_mask,
    _broadcast_mask,
    _without_past,
    _fewer_attributes,
    _smaller_windows,
    _bnsh_layout,
    _float32,
    _lowest_opset,
)


@dataclass(frozen=True, slots=True)
class _Setting:
    """One size or option of a trial, as text."""

    name: str
    value: str


def differences(start: CaseTrial, end: CaseTrial) -> tuple[str, ...]:
    """The sizes and options that differ, such as "q_seq_len 13 -> 1" and "is_causal True -> False"."""
    pairs = zip(_settings(start), _settings(end), strict=True)
    return tuple(f"{old.name} {old.value} -> {new.value}" for old, new in pairs if old.value != new.value)


def _settings(trial: CaseTrial) -> list[_Setting]:
    case, spec = trial.case, trial.case.spec
    mask = trial.draw().attn_mask
    settings = {
        **{name: getattr(case, name) for name in ("batch_size", "q_seq_len", "kv_seq_len", "past_seq_len")},
        **{name: getattr(spec, name) for name in ("q_num_heads", "kv_num_heads", "head_dim", "v_head_dim")},
        **{name: getattr(spec, name) for name in ("is_causal", "left_window", "right_window", "softcap", "scale")},
        "mask": spec.mask.value,
        "mask axes": None if mask is None else mask.ndim,
        "past": spec.has_past,
        "layout": spec.layout.value,
        "dtype": case.dtype.value,
        "opset": trial.used_opset,
        "qk_matmul_output_mode": trial.qk_mode,
    }
    return [_Setting(name, str(value)) for name, value in settings.items()]
