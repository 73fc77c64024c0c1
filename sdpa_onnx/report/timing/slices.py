"""Records along one factor with all other factors fixed; data only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, assert_never

from sdpa_onnx.report.text.chart_choice import drawn_lines
from sdpa_onnx.report.text.labels import CaseFactor, SizedRecord, case_options, known_sizes

__all__ = ["Slice", "axis_value", "slices_along"]

R = TypeVar("R", bound=SizedRecord)

# Least number of values for a line. Twin: saturation/points.py.
_LEAST_VALUES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice(Generic[R]):
    """Records of one target that differ in one factor, sorted by it.

    Args:
        left_out: Targets that have such records too and no chart, because there are too many.
    """

    target: str
    axis: CaseFactor
    records: tuple[R, ...]
    left_out: int = 0

    @property
    def values(self) -> tuple[int, ...]:
        """The values of the factor, each once, rising."""
        return tuple(sorted({axis_value(record, self.axis) for record in self.records}))


def axis_value(record: SizedRecord, axis: CaseFactor) -> int:
    """The value of a numeric factor, 0 if the record has none; the length is the number of keys."""
    match axis:
        case CaseFactor.BATCH:
            return known_sizes(record).batch_size or 0
        case CaseFactor.LENGTH:
            return known_sizes(record).kv_seq_len or 0
        case CaseFactor.HEAD_DIM:
            return record.sizes.head_dim or 0
        case CaseFactor.HEADS:
            return record.sizes.q_num_heads or 0
        case CaseFactor.DTYPE | CaseFactor.OPTIONS:
            raise ValueError(f"{axis} is not numeric.")
        case _:
            assert_never(axis)


def slices_along(records: Sequence[R], axis: CaseFactor) -> list[Slice[R]]:
    """For each target the slice with the most values of the factor, if it has at least three.

    Of many targets those with the most values are kept.
    """
    gathered: dict[tuple[object, ...], list[R]] = {}
    for record in records:
        if axis_value(record, axis) > 0:
            gathered.setdefault(_fixed(record, axis), []).append(record)
    widest: dict[str, Slice[R]] = {}
    for members in gathered.values():
        found = Slice(target=members[0].target, axis=axis, records=_sorted_along(members, axis))
        before = widest.get(found.target)
        if len(found.values) >= _LEAST_VALUES and (before is None or len(found.values) > len(before.values)):
            widest[found.target] = found
    kept = drawn_lines(list(widest.values()), lambda found: len(found.values))
    return [replace(one, left_out=len(widest) - len(kept)) for one in kept]


def _fixed(record: SizedRecord, axis: CaseFactor) -> tuple[object, ...]:
    sizes = known_sizes(record)
    factors: dict[CaseFactor, object] = {
        CaseFactor.BATCH: sizes.batch_size,
        CaseFactor.HEAD_DIM: sizes.head_dim,
        CaseFactor.LENGTH: (sizes.q_seq_len, sizes.kv_seq_len),
        CaseFactor.HEADS: sizes.q_num_heads,
        CaseFactor.DTYPE: record.dtype,
        CaseFactor.OPTIONS: case_options(record),
    }
    if axis is CaseFactor.HEADS:
        factors[CaseFactor.OPTIONS] = case_options(record, with_heads=False)
    # Along the length, the number of queries equals that of keys, or is fixed while the keys grow (decoding).
    queries = "as keys" if sizes.q_seq_len == sizes.kv_seq_len else sizes.q_seq_len
    factors[axis] = queries if axis is CaseFactor.LENGTH else None
    return (record.target, *(factors[one] for one in CaseFactor))


def _sorted_along(members: Sequence[R], axis: CaseFactor) -> tuple[R, ...]:
    return tuple(sorted(members, key=lambda record: axis_value(record, axis)))
