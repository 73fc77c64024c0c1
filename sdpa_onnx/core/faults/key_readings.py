"""Lists the readings in which keys are missing, in another order, of another step or at another position."""

import numpy as np

from sdpa_onnx.core.attention import spec_conditions as when
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.faults import reading_blocks as rule
from sdpa_onnx.core.faults.reading_blocks import SampleSizes, hide_keys
from sdpa_onnx.core.faults.reading_kind import Reading

__all__ = ["KEY_READINGS"]

# Blocks of keys that kernels and paged caches use.
_BLOCKS = (16, 32, 64, 128)


def _has_places(spec: AttentionSpec) -> bool:
    """Whether the place of a key matters: without mask, causality, window and lengths an attention is a sum."""
    return when.has_mask(spec) or when.positioned(spec) or when.has_lengths(spec)


def _in_blocks(size: int) -> tuple[Reading, ...]:
    """Blocks of keys in reverse order, each block in its own order; a shorter last block stays a block."""

    def order(sizes: SampleSizes) -> "np.typing.NDArray[np.int64]":
        places = np.arange(sizes.keys)
        return places[np.argsort(-(places // size), kind="stable")]

    return (
        Reading(
            name=f"cache-blocks-reversed-{size}",
            says=f"the blocks of {size} keys and values are in reverse order",
            applies=_has_places,
            blocks=rule.reorder(order),
        ),
        Reading(
            name=f"key-blocks-reversed-{size}",
            says=f"the blocks of {size} keys are in reverse order, the values are not",
            applies=when.always,
            blocks=rule.reorder(order, keys_only=True),
        ),
    )


def _rotated(steps: int, *, is_interleaved: bool) -> Reading:
    """Rotary embedding that turns the queries by one position more or less than the keys."""
    pairs = "neighbours" if is_interleaved else "halves"
    return Reading(
        name=f"rotary-{pairs}-{'ahead' if steps > 0 else 'behind'}",
        says=f"the queries are rotated by one position too {'many' if steps > 0 else 'few'} against the keys (rotary "
        f"embedding of base 10000, pairs are {pairs})",
        applies=lambda spec: spec.head_dim % 2 == 0 and spec.head_dim > (2 if is_interleaved else 0),
        blocks=rule.rotated_queries(steps, is_interleaved=is_interleaved),
    )


KEY_READINGS: tuple[Reading, ...] = (
    Reading(
        name="last-key-missing",
        says="the last key is missing",
        applies=when.always,
        blocks=hide_keys(lambda keys, sizes: keys == sizes.nonpad - 1),
    ),
    Reading(
        name="first-key-missing",
        says="the first key is missing",
        applies=when.always,
        blocks=hide_keys(lambda keys, _: keys == 0),
    ),
    Reading(
        name="half-keys-missing",
        says="the second half of the keys is missing",
        applies=when.always,
        blocks=hide_keys(lambda keys, sizes: keys >= sizes.nonpad // 2),
    ),
    Reading(
        name="past-ignored",
        says="the past is ignored",
        applies=when.has_past,
        blocks=hide_keys(lambda keys, sizes: keys < sizes.past),
    ),
    Reading(
        name="half-past-missing",
        says="the older half of the past is missing",
        applies=when.has_past,
        blocks=hide_keys(lambda keys, sizes: keys < (sizes.past + 1) // 2),
    ),
    Reading(
        name="past-after-new",
        says="the past is concatenated after the new keys",
        applies=lambda s: s.has_past and (when.positioned(s) or when.has_mask(s)),
        blocks=rule.past_after_new,
    ),
    Reading(
        name="cache-off-by-one",
        says="the new keys are written to the cache one position too early",
        applies=when.has_past,
        blocks=rule.cache_off_by_one,
    ),
    Reading(
        name="first-value-zero", says="the first value counts as zero", applies=when.always, blocks=rule.value_row_zero
    ),
    Reading(
        name="new-keys-missing",
        says="the new keys are missing: the cache is that of the step before",
        applies=when.has_past,
        blocks=hide_keys(lambda keys, sizes: keys >= sizes.past),
    ),
    Reading(
        name="newest-past-empty",
        says="the newest position of the past is still zero: the cache is that of the step before",
        applies=when.has_past,
        blocks=rule.newest_past_empty,
    ),
    Reading(
        name="past-reversed",
        says="the past is in reverse order",
        # Causality shows the whole past to every query.
        applies=lambda s: s.has_past and (when.has_mask(s) or s.has_window),
        blocks=rule.reorder(lambda sizes: np.r_[np.arange(sizes.past)[::-1], np.arange(sizes.past, sizes.keys)]),
    ),
    Reading(
        name="cache-reversed",
        says="keys and values are in reverse order",
        applies=_has_places,
        blocks=rule.reorder(lambda sizes: np.arange(sizes.keys)[::-1]),
    ),
    Reading(
        name="keys-reversed",
        says="the keys are in reverse order, the values are not",
        applies=when.always,
        blocks=rule.reorder(lambda sizes: np.arange(sizes.keys)[::-1], keys_only=True),
    ),
    Reading(
        name="key-halves-swapped",
        says="the two halves of the keys are swapped, the values are not",
        applies=when.always,
        blocks=rule.reorder(lambda sizes: np.roll(np.arange(sizes.keys), sizes.keys // 2), keys_only=True),
    ),
    *(reading for size in _BLOCKS for reading in _in_blocks(size)),
    *(_rotated(steps, is_interleaved=layout) for layout in (False, True) for steps in (1, -1)),
)
