"""Prove that a mask is causal or a window: that it hides the keys outside a band, whatever the graph inputs hold.

The mask is evaluated at many sizes with interval arithmetic, from sizes, constants and buffers alone. An entry is
proved hidden if every value in its interval hides it. One of the lengths lies beyond every position at which the mask
may change (its reach, see `index_paths`), because a window of 256 shows at no smaller length. A value whose dependence
on positions is not understood counts as unknown: padding, chunks and prefixes hide nothing for certain. Positions are
those of the operator: a causal query i sees key j if j <= i, or j <= past + i with a cache (`cached_bands`). A mask
aligned to the last key of an attention without a cache has no band. Does not rewrite masks; `normalise` does.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.index_paths import IndexPaths
from sdpa_onnx.graph.lift.masks.band_trial import (
    NOTHING_PROVED,
    MaskReading,
    MaskTrial,
    opened,
    read_mask,
    reading_of,
    widest_band,
)
from sdpa_onnx.graph.lift.masks.cached_bands import CachedBands, CachedKeys
from sdpa_onnx.graph.lift.size_trial import MisfitError, NodeEvaluators, SizeTrial

__all__ = ["MaskBands"]

# The first length rejects most masks without a band.
_LENGTHS = (5, 1, 2, 3, 8, 9, 17, 33)
# The largest reach that is tried: a float mask of 2048 x 2048 entries takes 16 MiB.
_LARGEST_THRESHOLD = 2048
# Added to the reach: a comparison may change at its number or right after it.
_BEYOND = 3
# More different thresholds than any mask has; the time grows with their count.
_MOST_THRESHOLDS = 16
# Trials above this size have a batch of one.
_SMALL = 64
_BATCH = 2
# Trials with different lengths per axis go up to this length.
_LARGEST_PAIR = 9


class MaskBands:
    """Proves the bands of the masks of one graph; results are shared between masks.

    Args:
        search: The graph; nodes may be added to it between two calls.
    """

    def __init__(self, search: GraphFacts) -> None:
        self._search = search
        self._axes = _axes_of_inputs(search.inputs)
        self._lengths, self._batches = _length_and_batch_axes(self._axes.values())
        self._evaluators = NodeEvaluators(search.model.opset_imports)
        # Key: whether leading axes have the same size as the length axes.
        self._paths = {
            is_every: IndexPaths(
                search=search,
                batches=frozenset(() if is_every else self._batches),
                longest=float(_LARGEST_THRESHOLD),
            )
            for is_every in (True, False)
        }
        self._trials: dict[tuple[bool, tuple[int, ...]], SizeTrial] = {}
        # Results for a mask that may be shorter than the keys, and for one that has an entry for every key.
        self._known: dict[object, tuple[MaskReading, MaskReading]] = {}
        self._cached: dict[object, MaskReading] = {}

    def reading(self, mask: ir.Value, key: ir.Value | None = None) -> MaskReading:
        """Find what is proved of a mask of an attention without a past.

        Args:
            mask: Boolean (True = may attend) or float (added to the scores); queries
                and keys are its last two axes. A term added to a hidden entry, such as
                a position bias, is assumed to be far below the largest float.
            key: The attention's key, in any layout. Without it, the mask may have fewer
                columns than there are keys, and so hide the others.
        """
        identity = self._identity(mask)
        if identity not in self._known:
            self._known[identity] = self._prove(mask)
        short, full = self._known[identity]
        is_full = short is not full and key is not None and self._is_as_long(mask, key)
        return full if is_full else short

    def cached_reading(self, mask: ir.Value, keys: CachedKeys) -> MaskReading:
        """Find what is proved of a mask of an attention with a cache; its band begins behind the cached keys.

        Args:
            mask: As in `reading`.
            keys: The attention's keys.
        """
        parts = (keys.past, keys.new, keys.joined)
        identity = self._identity(mask), *(self._search.sizes_of(part) for part in parts)
        if identity not in self._cached:
            bands = CachedBands(
                self._search,
                self._evaluators,
                self._axes,
                lengths=self._lengths,
                batches=self._batches,
                keys=keys,
            )
            self._cached[identity] = bands.reading(mask)
        return self._cached[identity]

    def _identity(self, mask: ir.Value) -> object:
        """A key that is equal for masks that several layers compute from the same condition."""
        node = mask.producer()
        if node is not None and node.op_type == "Expand" and not node.domain and node.inputs[0] is not None:
            sizes = self._search.sizes_of(mask)
            inner = self._identity(node.inputs[0])
            return mask if sizes is None or inner is node.inputs[0] else ("Expand", inner, sizes)
        if node is None or node.op_type != "Where" or node.domain:
            return mask
        branches = tuple(self._search.scalar_of(value) for value in node.inputs[1:])
        return mask if None in branches else (node.inputs[0], mask.dtype, *branches)

    def _prove(self, mask: ir.Value) -> tuple[MaskReading, MaskReading]:
        seen: list[MaskTrial] = []
        is_every = self._varies_with_the_first(mask)
        reach = self._paths[is_every].reach(mask)
        for length in _LENGTHS:
            seen += self._at(mask, length, is_every=is_every)
            if length >= reach and not widest_band(seen) and not all(one.hides_nothing for one in seen):
                return NOTHING_PROVED, NOTHING_PROVED
        beyond = self._beyond(mask, is_every=is_every)
        if beyond is None:
            return NOTHING_PROVED, NOTHING_PROVED
        seen += beyond
        return reading_of(seen, has_all_keys=False), reading_of(seen, has_all_keys=True)

    def _beyond(self, mask: ir.Value, *, is_every: bool) -> list[MaskTrial] | None:
        """Trials at a length beyond the mask's reach, where it no longer changes; None if that is too large to try.

        If the graph is invalid at that length (a table of positions is shorter), the last valid length is tried.
        """
        paths = self._paths[is_every]
        reach = int(paths.reach(mask))
        if reach > _LARGEST_THRESHOLD:
            return None
        largest = max(reach + _BEYOND, *_LENGTHS)
        seen = list(self._at(mask, largest, is_every=is_every))
        if seen:
            shorter = list(self._at(mask, largest - 1, is_every=is_every))
            is_long = len(shorter) == len(seen) and _grows(seen[0], shorter[0], largest)
            return opened(seen, shorter) if is_long else None
        singles = {int(number) for number in paths.thresholds(mask)}
        tried = sorted({one + step for one in sorted(singles)[-_MOST_THRESHOLDS:] for step in (-1, 0, 1)})
        seen = [one for length in tried if length > 0 for one in self._at(mask, length, is_every=is_every)]
        fits, misfits = max((one.queries for one in seen), default=1), largest
        while misfits - fits > 1:
            middle = (fits + misfits) // 2
            found = list(self._at(mask, middle, is_every=is_every))
            seen += found
            fits, misfits = (middle, misfits) if found else (fits, middle)
        return seen

    def _is_as_long(self, mask: ir.Value, key: ir.Value) -> bool:
        """Whether the mask has an entry for every key; a shorter mask hides the other keys."""
        for trial in (trial for length in _LENGTHS for trial in self._trials_of(length, is_every=True)):
            try:
                own, keys = trial.sizes(mask), trial.sizes(key)
            except MisfitError:
                continue
            if own is None or keys is None or own[-1:] != keys[-2:-1]:
                return False
        return True

    def _varies_with_the_first(self, mask: ir.Value) -> bool:
        """Whether its length is a leading axis, where a batch usually is: torch also uses (length, batch, width)."""
        try:
            few, many = (
                self._trial(tuple([_LENGTHS[0]] * len(self._lengths) + [first] * len(self._batches)), True).sizes(mask)
                for first in (_BATCH, _LENGTHS[0])
            )
        except MisfitError:
            return True
        return few is not None and many is not None and few[-2:] != many[-2:]

    def _at(self, mask: ir.Value, length: int, *, is_every: bool) -> Iterator[MaskTrial]:
        for trial in self._trials_of(length, is_every=is_every):
            try:
                yield read_mask(trial, mask)
            except MisfitError:
                continue

    def _trials_of(self, length: int, *, is_every: bool) -> Iterator[SizeTrial]:
        """All lengths equal; all different, if small; and with `is_every`, all dynamic axes equal."""
        count, batch = len(self._lengths), _BATCH if length <= _SMALL else 1
        choices = [[length] * count + [batch] * len(self._batches)]
        if 1 < length <= _LARGEST_PAIR:  # one query with several keys cannot be distinguished from a broadcast row
            places = [length + place for place in range(count)]
            choices += [places + [batch] * len(self._batches), places[::-1] + [batch] * len(self._batches)]
        if is_every:
            choices.append([length] * (count + len(self._batches)))
        return (self._trial(sizes, is_every) for sizes in dict.fromkeys(map(tuple, choices)))

    def _trial(self, sizes: tuple[int, ...], is_every: bool) -> SizeTrial:  # noqa: FBT001
        if (is_every, sizes) not in self._trials:
            chosen = dict(zip((*self._lengths, *self._batches), sizes, strict=True))
            inputs = {
                value: tuple(size if isinstance(size, int) else chosen[size] for size in shape)
                for value, shape in self._axes.items()
            }
            trial = SizeTrial(self._evaluators, chosen, inputs, self._paths[is_every].is_unknown)
            if max(sizes, default=0) > _SMALL:
                return trial  # too large to keep
            self._trials[is_every, sizes] = trial
        return self._trials[is_every, sizes]


def _grows(one: MaskTrial, shorter: MaskTrial, length: int) -> bool:
    """Whether the axes of the mask have at least that length, or do not depend on the length."""
    return all(
        size >= length or size == smaller
        for size, smaller in ((one.queries, shorter.queries), (one.keys, shorter.keys))
    )


def _axes_of_inputs(inputs: Iterable[ir.Value]) -> dict[ir.Value, tuple[int | str, ...]]:
    """Sizes and names of the axes of each input of known rank; an unnamed axis gets a unique name."""
    axes: dict[ir.Value, tuple[int | str, ...]] = {}
    for value in inputs:
        if value.shape is None:
            continue
        names = (size if isinstance(size, int) else size.value for size in value.shape)
        axes[value] = tuple(f"{value.name}#{axis}" if name is None else name for axis, name in enumerate(names))
    return axes


def _length_and_batch_axes(shapes: Iterable[tuple[int | str, ...]]) -> tuple[list[str], list[str]]:
    """Names of dynamic axes: possible lengths, and those that are only ever leading axes, such as a batch."""
    first: dict[str, None] = {}
    lengths: dict[str, None] = {}
    for shape in shapes:
        for axis, name in enumerate(shape):
            if isinstance(name, str):
                (first if axis == 0 and len(shape) > 1 else lengths)[name] = None
    return list(lengths), [name for name in first if name not in lengths]
