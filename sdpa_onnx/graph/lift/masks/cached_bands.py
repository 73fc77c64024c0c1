"""Prove the band of a mask of cached and new keys: query i has the place after the cached keys and i new ones.

Tries numbers of queries and of cached keys together, the larger of both beyond every position at which the mask may
change. Does not rewrite attentions; `normalise` does.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.core.attention.axis_limits import read_expression
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
from sdpa_onnx.graph.lift.size_trial import MisfitError, NodeEvaluators, SizeTrial
from sdpa_onnx.graph.lift.sizes import SizeEntry, SymbolicSize, stated

__all__ = ["CachedBands", "CachedKeys"]

# Numbers of queries; the first, with a longer cache, rejects most masks without a band.
_QUERIES = (5, 1, 2, 3, 8, 9, 17, 33)
_PASTS, _MORE_PASTS = (7, 0), (1, 4, 20)
# Up to so many queries are tried with more numbers of cached keys.
_MANY_PASTS = 2
_FEW_PASTS = 3
# Added to the reach: a comparison may change at its number or right after it.
_BEYOND = 3
_LARGEST_THRESHOLD = 2048
_MOST_THRESHOLDS = 16
_SMALL = 64
_BATCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedKeys:
    """The keys of an attention with a cache, all (batch, heads, length, width).

    Args:
        past: The cached ones.
        new: Those of the queries.
        joined: The cached ones followed by the new ones.
    """

    past: ir.Value
    new: ir.Value
    joined: ir.Value


class CachedBands:
    """Proves the bands of masks of one graph and one number of cached keys.

    Args:
        search: The graph.
        evaluators: Evaluators of its nodes.
        inputs: Sizes and names of the axes of each graph input.
        lengths: Names among them that may be lengths.
        batches: Names of leading axes.
        keys: The keys that the masks are of.
    """

    def __init__(
        self,
        search: GraphFacts,
        evaluators: NodeEvaluators,
        inputs: Mapping[ir.Value, tuple[int | str, ...]],
        *,
        lengths: Collection[str],
        batches: Collection[str],
        keys: CachedKeys,
    ) -> None:
        self._evaluators, self._inputs, self._keys = evaluators, inputs, keys
        self._lengths = [name for name in lengths if read_expression(name).is_name]
        self._computed = [name for name in lengths if name not in self._lengths]
        self._batches = batches
        past, new, total = (_length_of(search, value) for value in (keys.past, keys.new, keys.joined))
        self._past, self._new = past, new
        named = {past, *([SymbolicSize(("-", total, new))] if total is not None and new is not None else [])}
        self._paths = IndexPaths(
            search=search,
            batches=frozenset(batches),
            longest=float(_LARGEST_THRESHOLD),
            pasts=frozenset(size for size in named if isinstance(size, SymbolicSize)),
        )

    def reading(self, mask: ir.Value) -> MaskReading:
        """What is proved of a mask: boolean (True = may attend) or float (added to the scores)."""
        is_fixed = isinstance(self._past, int)
        if self._past is None or not (is_fixed or stated(self._past) in self._lengths):
            return NOTHING_PROVED
        reach = self._paths.reach(mask)
        if reach > _LARGEST_THRESHOLD or self._paths.mixes_positions(mask):
            return NOTHING_PROVED
        seen: list[MaskTrial] = []
        for queries in _QUERIES:
            several = _PASTS + (_MORE_PASTS if queries <= _MANY_PASTS else ())
            for past in (0,) if is_fixed else several:
                seen += self._at(mask, queries, past)
            if queries >= reach and not widest_band(seen):
                return NOTHING_PROVED
        beyond = self._beyond(mask, int(reach))
        has_pasts = is_fixed or len({one.past for one in seen}) >= _FEW_PASTS
        return reading_of([*seen, *beyond], has_all_keys=True) if beyond and has_pasts else NOTHING_PROVED

    def _beyond(self, mask: ir.Value, reach: int) -> list[MaskTrial]:
        """Trials beyond the mask's reach; none if the graph has fewer queries there than are tried.

        If the graph is invalid there (a table of positions is shorter), the longest valid lengths are tried.
        """
        largest = max(reach + _BEYOND, *_QUERIES)
        seen, shorter = list(self._at(mask, largest, 0)), list(self._at(mask, largest - 1, 0))
        is_fixed = isinstance(self._new, int)
        if seen and (len(seen) != len(shorter) or any(one.queries < largest and not is_fixed for one in seen)):
            return []
        places = sorted({int(number) for number in self._paths.thresholds(mask)})[-_MOST_THRESHOLDS:]
        near = {place + step for place in places for step in (-1, 0, 1) if place + step > 0}
        if seen:
            seen = opened(seen, shorter)
            pairs = [(largest, past) for past in sorted({1, 2, 3, *near, largest})] + [(1, largest), (2, largest)]
        else:
            fits = self._longest(mask, largest)
            pairs = [(fits, 0), (fits - fits // 2, fits // 2), (1, fits - 1)]
            pairs += [(place, 0) for place in sorted(near) if place <= fits]
        return seen + [one for queries, past in pairs if queries > 0 for one in self._at(mask, queries, past)]

    def _longest(self, mask: ir.Value, misfits: int) -> int:
        """The most queries at which the graph is valid without cached keys."""
        fits = 1
        while misfits - fits > 1:
            middle = (fits + misfits) // 2
            fits, misfits = (middle, misfits) if next(self._at(mask, middle, 0), None) else (fits, middle)
        return fits

    def _at(self, mask: ir.Value, queries: int, past: int) -> Iterator[MaskTrial]:
        for sizes in self._sizes(queries, past):
            shapes = {
                value: tuple(size if isinstance(size, int) else sizes[size] for size in shape)
                for value, shape in self._inputs.items()
            }
            trial = SizeTrial(self._evaluators, sizes, shapes, self._paths.is_unknown, is_size=self._paths.is_past)
            try:
                found = [trial.sizes(value) for value in (self._keys.past, self._keys.new, self._keys.joined)]
                cached, new, total = (-1 if one is None else one[2] for one in found)
                if total == cached + new or -1 in (cached, new, total):
                    yield read_mask(trial, mask, (cached, total))
            except MisfitError:
                continue

    def _sizes(self, queries: int, past: int) -> Iterator[dict[str, int]]:
        """Sizes by axis name: a length of unknown meaning is that of all keys, or that of the queries.

        Sizes that contradict each other are no trial.
        """
        own = {stated(size): number for size, number in ((self._new, queries), (self._past, past)) if size is not None}
        batch = _BATCH if queries + past <= _SMALL else 1
        for other in (queries + past, queries):
            sizes = dict.fromkeys(self._batches, batch) | {name: own.get(name, other) for name in self._lengths}
            for name in self._computed:
                expression = read_expression(name)
                known = all(part in sizes for part in expression.names)
                sizes[name] = expression.at(sizes) if known else other
            if min(sizes.values(), default=0) >= 0:
                yield sizes
            if {*self._lengths} <= {*own}:
                return


def _length_of(search: GraphFacts, value: ir.Value) -> SizeEntry | None:
    sizes = search.sizes_of(value)
    return None if sizes is None or len(sizes) != 4 else sizes[2]
