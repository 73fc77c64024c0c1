"""Defines the alternative readings of the attention operator: known ways in which runtimes differ from the oracle.

A reading is the oracle with one rule changed. The diagnosis finds the reading that a wrong
output agrees with, and planted faults use the same readings. The changes themselves are
implemented in `reading_inputs` and `reading_blocks`.
"""

import math
from collections.abc import Callable

import numpy as np

from sdpa_onnx.core.attention import spec_conditions as when
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.faults import reading_blocks as rule
from sdpa_onnx.core.faults import reading_inputs as other
from sdpa_onnx.core.faults.key_readings import KEY_READINGS
from sdpa_onnx.core.faults.reading_blocks import Positions, after_change, reposition
from sdpa_onnx.core.faults.reading_kind import Reading

__all__ = ["READINGS", "Reading", "readings_for"]


def readings_for(spec: AttentionSpec) -> tuple[Reading, ...]:
    """Return the readings that can differ from the oracle for a spec, in the order of the table."""
    return tuple(reading for reading in READINGS if reading.applies(spec))


def _scale(name: str, says: str, number: Callable[[AttentionSpec], float]) -> Reading:
    blocks = after_change(other.with_spec(scale=number))
    return Reading(name=name, says=says, applies=when.scaled_otherwise(number), blocks=blocks)


def _mask(
    name: str, says: str, change: other.Change, applies: Callable[[AttentionSpec], bool] = when.has_mask
) -> Reading:
    return Reading(name=name, says=says, applies=applies, blocks=after_change(change))


def _fill(where: str) -> other.Change:
    return other.change_mask(other.fill_mask(where))


def _causal_alone(spec: AttentionSpec) -> bool:
    """Causal without lengths; with lengths, causality hides no valid key from the last query."""
    return spec.is_causal and not when.has_lengths(spec)


def _empties(spec: AttentionSpec) -> bool:
    """Whether a query can have no visible key."""
    return when.has_mask(spec) or when.has_lengths(spec) or spec.has_window


_SCALES: tuple[Reading, ...] = (
    _scale("scale-missing", "the scale is left out", lambda _: 1.0),
    _scale("scale-ignored", "1/sqrt(head_dim) is used instead of the given scale", lambda s: s.head_dim**-0.5),
    _scale("scale-inverse", "the scale is 1/head_dim", lambda s: 1.0 / s.head_dim),
    _scale(
        "scale-half-applied",
        "the scale is applied to one operand only, as its square root",
        lambda s: math.copysign(math.sqrt(abs(s.scale_value)), s.scale_value),
    ),
    _scale("scale-twice", "the scale is applied twice", lambda s: s.scale_value * abs(s.scale_value)),
    _scale("scale-of-value", "the scale is 1/sqrt(v_head_dim)", lambda s: s.v_head_dim**-0.5),
    _scale("scale-zero", "every visible key has the same weight, as with scale 0", lambda _: 0.0),
    Reading(
        name="exponent-base-two",
        says="the softmax uses 2^x instead of e^x",
        applies=when.always,
        blocks=rule.exponent_base_two,
    ),
    Reading(
        name="softcap-ignored",
        says="the softcap is ignored",
        applies=when.has_softcap,
        blocks=after_change(other.with_spec(softcap=0.0)),
    ),
    Reading(
        name="softcap-after-mask",
        says="the softcap is applied after the mask, so that hidden keys leak into the output",
        dated="ONNX's text before onnx PR 7867 (onnx up to 1.21), onnxruntime's CPU kernel up to 1.25",
        applies=when.capped_before_hiding,
        blocks=rule.cap_last,
    ),
)

_POSITIONS: tuple[Reading, ...] = (
    Reading(
        name="causal-upper-left",
        says="the causal mask ignores the past or the lengths and is aligned with the first key",
        dated="with nonpad_kv_seqlen, ONNX's text before onnx PR 8068 (onnx 1.23)",
        applies=when.has_offset,
        blocks=reposition(Positions(offset=lambda _: 0)),
    ),
    Reading(
        name="causal-one-query-sees-all",
        says="a single query attends to every key despite is_causal",
        dated="onnxruntime's CPU kernel: without a past before onnxruntime PR 29050, after a past in 1.32.0",
        applies=_causal_alone,
        blocks=reposition(Positions(causal=lambda rows, sizes: np.full(rows.shape, sizes.queries != 1))),
    ),
    Reading(
        name="causal-bottom-right",
        says="the causal mask is aligned with the last key (offset total_seq_len - q_seq_len)",
        dated="onnxruntime issue 29020 reports it of its CPU kernel",
        applies=when.positioned,
        blocks=reposition(Positions(offset=lambda sizes: sizes.keys - sizes.queries)),
    ),
    Reading(
        name="causal-last-row-sees-all",
        says="the causal mask is not applied to the last query",
        applies=_causal_alone,
        blocks=reposition(Positions(causal=lambda rows, sizes: rows != sizes.queries - 1)),
    ),
    Reading(
        name="causal-ignored",
        says="is_causal is ignored",
        applies=when.causal,
        blocks=reposition(Positions(causal=lambda rows, _: np.zeros(rows.shape, dtype=bool))),
    ),
    Reading(
        name="causal-strict",
        says="the causal mask hides the query's own position",
        applies=when.causal,
        blocks=reposition(Positions(reach=-1)),
    ),
    Reading(
        name="causal-one-too-many",
        says="the causal mask leaves one key too many visible",
        applies=lambda s: s.is_causal and s.right_window != 0,
        blocks=reposition(Positions(reach=1)),
    ),
    Reading(
        name="window-ignored",
        says="the window is ignored",
        dated="ONNX's text of opsets 23 and 24, which has no window",
        applies=when.window_beyond_causal,
        blocks=reposition(Positions(), without_windows=True),
    ),
    Reading(
        name="window-left-one-more",
        says="the left window is one key too wide",
        dated="onnxruntime's GroupQueryAttention before 1.23 (onnxruntime PR 25927)",
        applies=when.left_windowed,
        blocks=reposition(Positions(left=1)),
    ),
    Reading(
        name="window-left-one-less",
        says="the left window is one key too narrow",
        applies=when.left_windowed,
        blocks=reposition(Positions(left=-1)),
    ),
    Reading(
        name="window-right-one-more",
        says="the right window is one key too wide",
        applies=when.right_windowed,
        blocks=reposition(Positions(right=1)),
    ),
    Reading(
        name="window-right-one-less",
        says="the right window is one key too narrow",
        applies=lambda s: s.right_window >= (1 if s.is_causal else 0),
        blocks=reposition(Positions(right=-1)),
    ),
)

_MASKS: tuple[Reading, ...] = (
    _mask("mask-ignored", "the mask is ignored", other.mask_ignored),
    _mask(
        "mask-swapped",
        "True and False of the mask are swapped",
        other.change_mask(other.swap_true_and_false),
        when.has_boolean_mask,
    ),
    _mask(
        "mask-as-boolean",
        "the float mask is read as boolean (nonzero = may attend)",
        other.change_mask(other.mask_as_boolean),
        when.has_float_mask,
    ),
    _mask(
        "mask-times-scale",
        "the float mask is multiplied by the scale",
        other.mask_times_scale,
        lambda s: s.mask.value == "float" and s.scale_value != 1.0,
    ),
    _mask("mask-transposed", "the query and key axes of the mask are swapped", other.change_mask(other.transpose_mask)),
    _mask("mask-batch-as-head", "the batch axis of the mask is used as its head axis", other.mix_batch_and_head),
    _mask("mask-first-row", "the mask of the first query is used for all", other.change_mask(other.only_first(2))),
    _mask("mask-first-batch", "the mask of the first sample is used for all", other.change_mask(other.only_first(0))),
    _mask("mask-first-head", "the mask of the first head is used for all", other.change_mask(other.only_first(1))),
    _mask("mask-next-row", "each query uses the mask of the next one", other.change_mask(other.of_next(2))),
    _mask("mask-next-batch", "each sample uses the mask of the next one", other.change_mask(other.of_next(0))),
    _mask("mask-next-head", "each head uses the mask of the next one", other.change_mask(other.of_next(1))),
    _mask(
        "mask-left-open",
        "keys hidden before the first visible key are visible",
        other.change_mask(other.fill_mask("left")),
    ),
    _mask(
        "mask-right-open",
        "keys hidden after the last visible key are visible",
        other.change_mask(other.fill_mask("right")),
    ),
    _mask("mask-holes-filled", "keys hidden between visible keys are visible", _fill("holes")),
)

_LENGTHS: tuple[Reading, ...] = (
    Reading(
        name="padding-ignored",
        says="nonpad_kv_seqlen is ignored: padding is visible",
        applies=lambda s: when.has_lengths(s) and not s.is_causal,
        blocks=reposition(Positions(valid=lambda keys, _: keys >= 0)),
    ),
    Reading(
        name="padding-left",
        says="the padding is assumed to be on the left",
        applies=when.has_lengths,
        blocks=reposition(
            Positions(
                offset=lambda sizes: sizes.keys - sizes.queries,
                valid=lambda keys, sizes: keys >= sizes.keys - sizes.nonpad,
            )
        ),
    ),
    _mask("lengths-one-more", "one key of padding is visible", other.change_lengths(1), when.has_lengths),
    _mask("lengths-one-less", "the lengths are one too short", other.change_lengths(-1), when.has_lengths),
    _mask(
        "lengths-of-first",
        "the length of the first sample is used for all",
        other.first_length_for_all,
        when.has_lengths,
    ),
)

_EMPTY_ROWS: tuple[Reading, ...] = (
    Reading(
        name="masked-row-nan",
        says="the output of a query without a visible key is NaN",
        dated="a softmax without a guard, as in ONNX's text before onnx PR 8068 (onnx 1.23)",
        applies=_empties,
        blocks=rule.masked_rows(level=False, bias=np.nan),
    ),
    Reading(
        name="masked-row-mean",
        says="the output of a query without a visible key is the mean of all values",
        applies=_empties,
        blocks=rule.masked_rows(level=True, bias=0.0),
    ),
    Reading(
        name="masked-row-unmasked",
        says="a query without a visible key attends to every key",
        applies=_empties,
        blocks=rule.masked_rows(level=False, bias=0.0),
    ),
    Reading(
        name="masked-row-mean-of-allowed",
        says="the output of a query whose mask hides every key is the mean of the keys that causality and window allow",
        applies=lambda s: when.has_mask(s) and when.positioned(s),
        blocks=rule.masked_rows(level=True, bias=0.0, causal_only=True),
    ),
    Reading(
        name="lowest-is-hidden",
        says="a row of the lowest finite mask value counts as fully masked and its output is zero",
        applies=when.has_float_mask,
        blocks=rule.lowest_is_hidden,
    ),
)

_HEADS: tuple[Reading, ...] = (
    _mask(
        "heads-tiled",
        "query head h uses key/value head h mod kv_num_heads",
        other.map_heads(kv=lambda heads, s: heads % s.kv_num_heads),
        when.grouped,
    ),
    _mask(
        "head-pair-swapped",
        "the first two heads are swapped",
        other.map_heads(query=lambda heads: np.where(heads < 2, 1 - heads, heads)),
        when.several_heads,
    ),
    _mask(
        "head-zero-for-all",
        "every head returns the output of the first head",
        other.map_heads(query=np.zeros_like),
        when.several_heads,
    ),
    _mask(
        "kv-head-zero-for-all",
        "every query head uses the first key/value head",
        other.map_heads(kv=lambda heads, _: np.zeros_like(heads)),
        lambda s: s.kv_num_heads > 1,
    ),
    _mask("batch-reversed", "the samples of the batch are in reverse order", other.reverse_batch, when.always),
    _mask("layout-not-transposed", "the 3-D inputs are not transposed", other.untransposed, when.three_dimensional),
)

# If inputs do not distinguish two readings, the diagnosis names the earlier one.
READINGS: tuple[Reading, ...] = (
    *_EMPTY_ROWS,
    *_POSITIONS,
    *_SCALES,
    *_MASKS,
    *_LENGTHS,
    *_HEADS,
    *KEY_READINGS,
)
