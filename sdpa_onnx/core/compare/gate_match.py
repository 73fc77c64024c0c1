"""Which record of BASE and which of HEAD speak of the same thing.

By what they are, never by the order of the file; what is the same but for a name or an opset is found too, where
there is only one such on either side. Judges nothing.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sdpa_onnx.core.records.judge_records import ConformanceRecord
from sdpa_onnx.core.records.record_base import BaseRecord
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, SaturationRecord, TimingRecord

__all__ = ["RecordMatch", "RecordT", "match_records"]

RecordT = TypeVar("RecordT", bound=BaseRecord)

# What a record is of, beside target, case, form, opset and runtime: the strictest reading first, then what may have
# been renamed or changed. Seed and element type always count: other inputs are another question.
_LEVELS: dict[type[BaseRecord], tuple[tuple[str, ...], ...]] = {
    AgreementRecord: (
        ("target", "case", "form", "opset", "runtime", "dtype", "inputs", "seed", "subject", "site"),
        ("target", "case", "form", "opset", "runtime", "dtype", "inputs", "seed"),
        ("target", "case", "form", "runtime", "dtype", "inputs", "seed"),
    ),
    TimingRecord: (
        ("target", "case", "form", "opset", "runtime", "dtype", "cache", "threads", "options", "python", "arm"),
        ("target", "case", "form", "opset", "runtime", "dtype", "cache", "threads", "options"),
        ("target", "case", "form", "runtime", "dtype", "cache", "threads", "options"),
        ("target", "case", "form", "opset", "runtime", "dtype", "cache", "options", "arm"),
    ),
    ExportRecord: (("target", "case", "form", "opset", "runtime"), ("target", "case", "form", "runtime")),
    ConformanceRecord: (("runtime", "operator", "feature", "opset", "dtype"),),
    SaturationRecord: (("target", "case", "scale_rule", "head_dim", "kv_seq_len", "sigma", "dtype"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMatch(Generic[RecordT]):
    """Records that speak of the same thing.

    One of each where all is plain; none on a side where the thing is not there; several where a side has it more
    than once, and not as often as the other.
    """

    base: tuple[RecordT, ...]
    head: tuple[RecordT, ...]

    @property
    def pair(self) -> tuple[RecordT, RecordT] | None:
        """The one of BASE and the one of HEAD, or None."""
        return (self.base[0], self.head[0]) if len(self.base) == len(self.head) == 1 else None


def match_records(base: Sequence[RecordT], head: Sequence[RecordT]) -> list[RecordMatch[RecordT]]:
    """Match records of one kind, in the order of HEAD; what is only in BASE comes last.

    The same thing as often on both sides is paired in order. A looser reading counts only for what is there once.
    """
    kind = type((*head, *base)[0]) if base or head else BaseRecord
    if kind not in _LEVELS:
        return []
    found: list[RecordMatch[RecordT]] = []
    for number, names in enumerate(_LEVELS[kind]):
        here = list(_matched(base, head, names, only_single=number > 0))
        found += here
        taken = {id(record) for match in here for record in (*match.base, *match.head)}
        base = [record for record in base if id(record) not in taken]
        head = [record for record in head if id(record) not in taken]
    found += [RecordMatch(base=(), head=(record,)) for record in head]
    return [*found, *(RecordMatch(base=(record,), head=()) for record in base)]


def _matched(
    base: Sequence[RecordT], head: Sequence[RecordT], names: tuple[str, ...], *, only_single: bool
) -> Iterator[RecordMatch[RecordT]]:
    before, now = _groups(base, names), _groups(head, names)
    for key, records in now.items():
        others = before.get(key, [])
        if not others or (only_single and (len(others) > 1 or len(records) > 1)):
            continue
        if len(others) == len(records):
            yield from (RecordMatch(base=(one,), head=(other,)) for one, other in zip(others, records, strict=True))
        else:
            yield RecordMatch(base=tuple(others), head=tuple(records))


def _groups(records: Sequence[RecordT], names: tuple[str, ...]) -> dict[Hashable, list[RecordT]]:
    groups: dict[Hashable, list[RecordT]] = {}
    for record in records:
        key = tuple(_hashable(getattr(record, name)) for name in names)
        groups.setdefault(key, []).append(record)
    return groups


def _hashable(value: object) -> Hashable:
    return tuple(sorted(value.items())) if isinstance(value, dict) else str(value)
