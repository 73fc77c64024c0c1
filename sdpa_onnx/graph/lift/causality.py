"""Whether a mask hides every later key, whatever the content of the graph's inputs.

The mask is computed at many sizes from what is known there without any content: sizes, constants and buffers. An
entry is hidden for certain where all that it can be hides. One length is beyond every position at which the mask may
change its ways, since a window of 256 shows at no smaller length; what changes with positions in a way that is not read
counts as unknown (see `index_paths`). Causality is that of the operator without a
past: query i sees key j if j <= i. A mask that is aligned with the last key is not causal here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.index_paths import IndexPaths
from sdpa_onnx.graph.lift.size_trial import MisfitError, NodeEvaluators, SizeTrial
from sdpa_onnx.graph.lift.spans import Span, hidden_below

__all__ = ["CausalMasks", "Causality"]

_Bools = NDArray[np.bool_]

# The first tells most masks that are not causal.
_LENGTHS = (5, 1, 2, 3, 8, 9, 17, 33)
# Sums of numbers up to this are tried: a float mask of 2048 x 2048 entries is 16 MiB.
_LARGEST_THRESHOLD = 2048
# Beyond the sum, for a comparison may hold at a number or only next to it.
_BEYOND = 3
# More different numbers than any mask has; the time grows with them.
_MOST_THRESHOLDS = 16
# So many different lengths must have had a meaning, where lengths vary at all.
_LEAST_LENGTHS = 4
# Large trials have one sample.
_SMALL = 64
_BATCH = 2
# Lengths that differ are tried up to here.
_LARGEST_PAIR = 9


class Causality(Enum):
    """What a mask proves.

    EXACTLY_CAUSAL: it hides the later keys and nothing else: causality may stand in its place.
    CAUSAL_AND_MORE: it hides the later keys, and may hide more: it stays, beside causality.
    LOWEST_AND_MORE: the same, but by a finite lowest number: where it hides all keys of a
        query, the query averages over later keys too, which causality beside it would hide.
    NOTHING_HIDDEN: it lets every key be seen, at all sizes: it may be left out.
    NOT_CAUSAL: none of these is proved.
    """

    NOT_CAUSAL = auto()
    LOWEST_AND_MORE = auto()
    CAUSAL_AND_MORE = auto()
    EXACTLY_CAUSAL = auto()
    NOTHING_HIDDEN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A mask at one choice of sizes.

    Args:
        queries: How many it has.
        keys: How many it has.
        hides_later: It hides every later key.
        is_absolute: It does so by False or minus infinity, or each query sees another key for
            certain, so that a finite lowest number hides as well.
        hides_no_more: It lets every other key be seen.
        hides_nothing: It lets every key be seen that it has an entry for.
    """

    queries: int
    keys: int
    hides_later: bool = False
    is_absolute: bool = False
    hides_no_more: bool = False
    hides_nothing: bool = False


_NOT_SEEN = _Seen(queries=0, keys=0)


class CausalMasks:
    """Judges the masks of one graph; what is computed for one mask serves the others.

    Args:
        search: The graph; nodes may be added to it between two questions.
    """

    def __init__(self, search: GraphFacts) -> None:
        self._search = search
        self._axes = _axes_of_inputs(search.graph.inputs)
        self._lengths, self._batches = _length_and_batch_axes(self._axes.values())
        self._evaluators = NodeEvaluators(search.model.opset_imports)
        # By whether axes that stand first are as long as the others.
        self._paths = {
            is_every: IndexPaths(
                search=search,
                batches=frozenset(() if is_every else self._batches),
                longest=float(_LARGEST_THRESHOLD),
            )
            for is_every in (True, False)
        }
        self._trials: dict[tuple[bool, tuple[int, ...]], SizeTrial] = {}
        # What is proved of a mask that may be shorter than the keys, and of one that is not.
        self._known: dict[object, tuple[Causality, Causality]] = {}

    def causality(self, mask: ir.Value, key: ir.Value | None = None) -> Causality:
        """Judge a mask of an attention without a past.

        Args:
            mask: Boolean (True = may attend) or float (added to the scores); queries
                and keys are its last two axes. What is added to an entry that hides,
                such as a position bias, is taken to be far from the largest number.
            key: The attention's key, in any layout of its own. Without it the mask may
                have fewer keys, which hides the others.
        """
        identity = self._identity(mask)
        if identity not in self._known:
            self._known[identity] = self._judge(mask)
        short, whole = self._known[identity]
        is_whole = short is not whole and key is not None and self._is_as_long(mask, key)
        return whole if is_whole else short

    def _identity(self, mask: ir.Value) -> object:
        """The same for masks that layers make from one condition, each for itself."""
        node = mask.producer()
        if node is not None and node.op_type == "Expand" and not node.domain and node.inputs[0] is not None:
            sizes = self._search.sizes_of(mask)
            inner = self._identity(node.inputs[0])
            return mask if sizes is None or inner is node.inputs[0] else ("Expand", inner, sizes)
        if node is None or node.op_type != "Where" or node.domain:
            return mask
        branches = tuple(self._search.scalar_of(value) for value in node.inputs[1:])
        return mask if None in branches else (node.inputs[0], mask.dtype, *branches)

    def _judge(self, mask: ir.Value) -> tuple[Causality, Causality]:
        seen: list[_Seen] = []
        is_every = self._varies_with_the_first(mask)
        for length in _LENGTHS:
            seen += self._at(mask, length, is_every=is_every)
            if not all(one.hides_later for one in seen) and not all(one.hides_nothing for one in seen):
                return Causality.NOT_CAUSAL, Causality.NOT_CAUSAL
        beyond = self._beyond(mask, is_every=is_every)
        if beyond is None:
            return Causality.NOT_CAUSAL, Causality.NOT_CAUSAL
        seen += beyond
        return _verdict(seen, has_all_keys=False), _verdict(seen, has_all_keys=True)

    def _beyond(self, mask: ir.Value, *, is_every: bool) -> list[_Seen] | None:
        """The mask at a length from which on it does not change any more; None if that cannot be tried.

        Where it has no meaning at that length, a table of positions ends before: then at the last that has one.
        """
        paths = self._paths[is_every]
        reach = int(paths.reach(mask))
        if reach > _LARGEST_THRESHOLD:
            return None
        largest = max(reach + _BEYOND, *_LENGTHS)
        seen = list(self._at(mask, largest, is_every=is_every))
        if seen:
            return seen if self._grows(mask, largest, seen, is_every=is_every) else None
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

    def _grows(self, mask: ir.Value, length: int, seen: Sequence[_Seen], *, is_every: bool) -> bool:
        """Whether its axes are as long as that, or do not grow with the length."""
        before = next(self._at(mask, length - 1, is_every=is_every), _NOT_SEEN)
        one = seen[0]
        return all(
            size >= length or size == smaller
            for size, smaller in ((one.queries, before.queries), (one.keys, before.keys))
        )

    def _is_as_long(self, mask: ir.Value, key: ir.Value) -> bool:
        """Whether the mask has an entry for every key; a shorter one hides the others."""
        for trial in (trial for length in _LENGTHS for trial in self._trials_of(length, is_every=True)):
            try:
                own, keys = trial.sizes(mask), trial.sizes(key)
            except MisfitError:
                continue
            if own is None or keys is None or own[-1:] != keys[-2:-1]:
                return False
        return True

    def _varies_with_the_first(self, mask: ir.Value) -> bool:
        """Whether its length is an axis that stands first, as a batch does: (length, batch, width) is torch's way."""
        try:
            few, many = (
                self._trial(tuple([_LENGTHS[0]] * len(self._lengths) + [first] * len(self._batches)), True).sizes(mask)
                for first in (_BATCH, _LENGTHS[0])
            )
        except MisfitError:
            return True
        return few is not None and many is not None and few[-2:] != many[-2:]

    def _at(self, mask: ir.Value, length: int, *, is_every: bool) -> Iterator[_Seen]:
        for trial in self._trials_of(length, is_every=is_every):
            try:
                yield _look(trial, mask)
            except MisfitError:
                continue

    def _trials_of(self, length: int, *, is_every: bool) -> Iterator[SizeTrial]:
        """Every length the same; all of them different, if small; and if asked for, every open axis of that size."""
        count, batch = len(self._lengths), _BATCH if length <= _SMALL else 1
        choices = [[length] * count + [batch] * len(self._batches)]
        if 1 < length <= _LARGEST_PAIR:  # one query of several keys looks like a row for all queries
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


def _axes_of_inputs(inputs: Iterable[ir.Value]) -> dict[ir.Value, tuple[int | str, ...]]:
    """Sizes and names of the axes of each input of known rank; an axis without a name gets one of its own."""
    axes: dict[ir.Value, tuple[int | str, ...]] = {}
    for value in inputs:
        if value.shape is None:
            continue
        names = (size if isinstance(size, int) else size.value for size in value.shape)
        axes[value] = tuple(f"{value.name}#{axis}" if name is None else name for axis, name in enumerate(names))
    return axes


def _length_and_batch_axes(shapes: Iterable[tuple[int | str, ...]]) -> tuple[list[str], list[str]]:
    """Names of open axes: those that may be lengths, and those that come first only, as a batch does."""
    first: dict[str, None] = {}
    lengths: dict[str, None] = {}
    for shape in shapes:
        for axis, name in enumerate(shape):
            if isinstance(name, str):
                (first if axis == 0 and len(shape) > 1 else lengths)[name] = None
    return list(lengths), [name for name in first if name not in lengths]


def _look(trial: SizeTrial, mask: ir.Value) -> _Seen:
    span, dtype = trial.span(mask), trial.dtype(mask)
    if span is None or dtype is None or span.low.ndim < 2 or not span.low.size:
        return _NOT_SEEN
    queries, keys = span.low.shape[-2:]
    hidden, absolute, shown, visible = _read(span, dtype)
    hides_nothing = bool(visible.all())
    if (queries == 1) != (keys == 1):  # one row for all queries, or one column for all keys
        return _Seen(queries=queries, keys=keys, hides_nothing=hides_nothing)
    later = np.triu(np.ones((queries, keys), np.bool_), k=1)
    return _Seen(
        queries=queries,
        keys=keys,
        hides_later=bool(hidden[..., later].all()),
        is_absolute=bool(absolute[..., later].all()) or bool((shown & ~later).any(-1).all()),
        hides_no_more=bool(visible[..., ~later].all()),
        hides_nothing=hides_nothing,
    )


def _read(span: Span, dtype: "np.dtype[Any]") -> tuple[_Bools, _Bools, _Bools, _Bools]:
    """Entries that are hidden for certain, those that no score can show, those not hidden, those not even moved."""
    if dtype == np.bool_:
        hidden, shown = ~span.high.astype(np.bool_), span.low.astype(np.bool_)
        return hidden, hidden, shown, shown
    limit = hidden_below(dtype)
    plain = np.asarray((span.low == 0) & (span.high == 0))
    return np.asarray(span.high <= limit), np.asarray(span.high == -np.inf), np.asarray(span.low > limit), plain


def _verdict(seen: "list[_Seen]", *, has_all_keys: bool) -> Causality:
    """What holds at all sizes; lengths that vary must have been enough, and one query alone proves nothing."""
    lengths = {one.queries for one in seen}
    if not seen or 1 < len(lengths) < _LEAST_LENGTHS:
        return Causality.NOT_CAUSAL
    if has_all_keys and all(one.hides_nothing for one in seen):
        return Causality.NOTHING_HIDDEN
    if not all(one.hides_later for one in seen) or max(lengths) == 1:
        return Causality.NOT_CAUSAL
    # A short mask hides the keys that it does not have: none that causality shows if it has no more queries.
    is_wide = has_all_keys or all(one.queries <= one.keys for one in seen)
    if is_wide and all(one.hides_no_more for one in seen):
        return Causality.EXACTLY_CAUSAL
    return Causality.CAUSAL_AND_MORE if all(one.is_absolute for one in seen) else Causality.LOWEST_AND_MORE
