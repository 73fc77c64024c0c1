"""Read a mask at one choice of sizes, and find the band of keys outside which it hides everything at all of them.

A band is a window around each query, see `WindowBounds`. Chooses no sizes; `mask_bands` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.graph.lift.size_trial import SizeTrial
from sdpa_onnx.graph.lift.spans import Span, hidden_below

__all__ = ["NOTHING_PROVED", "MaskReading", "MaskTrial", "Proved", "opened", "read_mask", "reading_of", "widest_band"]

_Bools = NDArray[np.bool_]

# If lengths vary at all, the graph must be valid at this many different lengths.
_LEAST_LENGTHS = 4


class Proved(Enum):
    """What is proved of a mask and its band.

    EXACTLY_BAND: it hides the keys outside the band and nothing else; causality and windows may replace it.
    BAND_AND_MORE: it hides the keys outside the band and may hide others; it is kept, and causality and windows are
        added.
    LOWEST_AND_MORE: the same, but it hides by a finite lowest number. Where it hides all keys of a query, that query
        averages over the keys outside the band too, which causality and windows would hide.
    NOTHING_HIDDEN: it hides no key at any size; it may be removed.
    NOTHING: none of these.
    """

    NOTHING = auto()
    LOWEST_AND_MORE = auto()
    BAND_AND_MORE = auto()
    EXACTLY_BAND = auto()
    NOTHING_HIDDEN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskReading:
    """What is proved of one mask.

    Args:
        proved: How much.
        band: The keys outside it are hidden; without bounds if nothing is proved.
    """

    proved: Proved = Proved.NOTHING
    band: WindowBounds = field(default_factory=WindowBounds)


NOTHING_PROVED = MaskReading()


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTrial:
    """The mask at one choice of sizes; the arrays are (queries, keys) and hold for every sample and head.

    Args:
        queries: Number of rows.
        keys: Number of columns.
        hidden: Entries proved hidden.
        absolute: Entries proved hidden by False or minus infinity.
        shown: Entries proved not hidden.
        plain: Entries proved not even changed: 0 is added.
        is_row_or_column: One row serves all queries, or one column all keys: no band can be read from it.
        past: Keys before that of the first query.
        is_left_open, is_right_open: No bound holds on that side, see `opened`.
    """

    queries: int
    keys: int
    hidden: _Bools
    absolute: _Bools
    shown: _Bools
    plain: _Bools
    is_row_or_column: bool
    past: int = 0
    is_left_open: bool = False
    is_right_open: bool = False

    @property
    def hides_nothing(self) -> bool:
        return bool(self.plain.all())

    @property
    def width(self) -> int:
        """Bounds of at least this minus one show nothing here."""
        return min(self.queries, self.keys)

    def band(self) -> WindowBounds:
        """The narrowest band with every entry that is not proved hidden; a bound at the corner counts as none."""
        seen = ~self.hidden
        columns, rows = seen.any(axis=0), seen.any(axis=1)
        if self.is_row_or_column or not columns.any():
            return WindowBounds() if self.is_row_or_column else WindowBounds(left=0, right=0)
        last = self.keys - 1 - np.argmax(seen[:, ::-1], axis=1)
        first = np.argmax(seen, axis=1)
        places = np.arange(self.queries) + self.past
        right, left = int((last - places)[rows].max()), int((places - first)[rows].max())
        has_left = left < self.queries + self.past - 1 and not self.is_left_open
        has_right = right < self.keys - self.past - 1 and not self.is_right_open
        return WindowBounds(left=max(left, 0) if has_left else None, right=max(right, 0) if has_right else None)

    def inside(self, band: WindowBounds) -> _Bools:
        """Entries within a band."""
        distance = np.arange(self.keys) - np.arange(self.queries)[:, None] - self.past
        left, right = (-self.queries - self.past if band.left is None else -band.left), band.right
        return np.asarray((distance >= left) & (distance <= (self.keys if right is None else right)))

    def is_absolute(self, inside: _Bools) -> bool:
        """Whether it hides by False or minus infinity, or every query is proved to see a key within the band."""
        return bool(self.absolute[~inside].all()) or bool((self.shown & inside).any(-1).all())


_NONE = np.zeros((2, 2), np.bool_)
# Of a mask of unknown shape: no band fits it.
_UNKNOWN = MaskTrial(queries=2, keys=2, hidden=_NONE, absolute=_NONE, shown=_NONE, plain=_NONE, is_row_or_column=True)


def read_mask(trial: SizeTrial, mask: ir.Value, lengths: tuple[int, int] | None = None) -> MaskTrial:
    """The mask at these sizes; one that contradicts every band if its shape is unknown or it has no entry.

    Args:
        trial: The graph at these sizes.
        mask: The mask.
        lengths: With a cache, the numbers of cached keys and of all keys: every other key is that of a query, and a
            mask that has no entry for every pair contradicts every band.

    Raises:
        MisfitError: If the graph is invalid at these sizes.
    """
    span, dtype = trial.span(mask), trial.dtype(mask)
    if span is None or dtype is None or span.low.ndim < 2 or not span.low.size:
        return _UNKNOWN
    queries, keys = span.low.shape[-2:]
    past, total = (0, keys) if lengths is None else lengths
    if keys != total or (lengths is not None and queries != total - past):
        return _UNKNOWN
    hidden, absolute, shown, plain = (_of_all(entries) for entries in _entries(span, dtype))
    return MaskTrial(
        queries=queries,
        keys=keys,
        hidden=hidden,
        absolute=absolute,
        shown=shown,
        plain=plain,
        is_row_or_column=lengths is None and (queries == 1) != (keys == 1),
        past=past,
    )


def _of_all(entries: _Bools) -> _Bools:
    """What holds for all samples and heads."""
    return np.asarray(entries.all(axis=tuple(range(entries.ndim - 2))))


def _entries(span: Span, dtype: "np.dtype[Any]") -> tuple[_Bools, _Bools, _Bools, _Bools]:
    """Entries proved hidden, hidden by False or -inf, proved not hidden, and proved not even changed (0 is added)."""
    if dtype == np.bool_:
        hidden, shown = ~span.high.astype(np.bool_), span.low.astype(np.bool_)
        return hidden, hidden, shown, shown
    limit = hidden_below(dtype)
    plain = np.asarray((span.low == 0) & (span.high == 0))
    return np.asarray(span.high <= limit), np.asarray(span.high == -np.inf), np.asarray(span.low > limit), plain


def opened(seen: Sequence[MaskTrial], shorter: Sequence[MaskTrial]) -> list[MaskTrial]:
    """Trials beyond the mask's reach, without the bounds that one length less does not have.

    Where queries from a place on see all keys, more of them do at every greater length: such a bound is none.
    """
    found: list[MaskTrial] = []
    for one, other in zip(seen, shorter, strict=True):
        now, before = one.band(), other.band()
        found.append(replace(one, is_left_open=now.left != before.left, is_right_open=now.right != before.right))
    return found


def widest_band(seen: Sequence[MaskTrial]) -> WindowBounds:
    """The band that holds at all sizes: a bound must show at the greatest length, and fit every other."""
    greatest = max((one.width for one in seen), default=0)
    bands = [one.band() for one in seen]
    if any(one.is_row_or_column and not one.hides_nothing for one in seen):
        return WindowBounds()
    shows = [band for one, band in zip(seen, bands, strict=True) if one.width == greatest]
    left = None if any(one.left is None for one in shows) else max((one.left or 0 for one in bands), default=0)
    right = None if any(one.right is None for one in shows) else max((one.right or 0 for one in bands), default=0)
    band = WindowBounds(left=left, right=right)
    # A shorter length, where no bound shows, must not contradict the greatest.
    fits = all(bool(one.hidden[~one.inside(band)].all()) for one in seen)
    return band if fits and band else WindowBounds()


def reading_of(seen: Sequence[MaskTrial], *, has_all_keys: bool) -> MaskReading:
    """What holds at all sizes. Enough different lengths are required, and a single query proves nothing.

    Args:
        seen: The trials.
        has_all_keys: The mask has an entry for every key. If not, it hides the keys that it has no entry for.
    """
    lengths = {one.queries for one in seen}
    if not seen or 1 < len(lengths) < _LEAST_LENGTHS:
        return NOTHING_PROVED
    if has_all_keys and all(one.hides_nothing for one in seen):
        return MaskReading(proved=Proved.NOTHING_HIDDEN)
    band = widest_band(seen)
    if not band or max(lengths) == 1:
        return NOTHING_PROVED
    inside = [one.inside(band) for one in seen]
    is_absolute = all(one.is_absolute(within) for one, within in zip(seen, inside, strict=True))
    hides_no_more = all(bool(one.plain[within].all()) for one, within in zip(seen, inside, strict=True))
    # A short mask hides the keys it has no entry for; the band hides them too if they lie beyond the last query's.
    right = band.right
    is_wide = has_all_keys or (right is not None and all(one.queries + right <= one.keys for one in seen))
    if is_wide and hides_no_more and is_absolute:
        return MaskReading(proved=Proved.EXACTLY_BAND, band=band)
    return MaskReading(proved=Proved.BAND_AND_MORE if is_absolute else Proved.LOWEST_AND_MORE, band=band)
