"""Matches records of BASE with records of HEAD that describe the same thing.

Matches by their fields, not by their order in the file. If only a name or the opset differs, records match if there is
exactly one candidate on each side. Decides no verdict.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sdpa_onnx.core.records.judge_records import ConformanceRecord
from sdpa_onnx.core.records.record_base import BaseRecord
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, SaturationRecord, TimingRecord

__all__ = ["RecordMatch", "RecordT", "match_records"]

RecordT = TypeVar("RecordT", bound=BaseRecord)

# Fields that identify a record, the strictest set first, then sets without what may have been renamed or changed. Seed
# and element type are always included, because other inputs are a different check.
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
    """Records of BASE and HEAD that describe the same thing.

    Usually one of each. A side is empty if it has no such record; there are several if the sides have different
    numbers of them.
    """

    base: tuple[RecordT, ...]
    head: tuple[RecordT, ...]

    @property
    def pair(self) -> tuple[RecordT, RecordT] | None:
        """The record of BASE and the record of HEAD if there is exactly one of each, else None."""
        return (self.base[0], self.head[0]) if len(self.base) == len(self.head) == 1 else None


def match_records(base: Sequence[RecordT], head: Sequence[RecordT]) -> list[RecordMatch[RecordT]]:
    """Match records of one kind, in the order of HEAD; records only in BASE come last.

    If both sides have equally many records of the same thing, they are paired in order. Matching by fewer fields
    requires exactly one candidate on each side.
    """
    kind = type((*head, *base)[0]) if base or head else BaseRecord
    if kind not in _LEVELS:
        return []
    matches: list[RecordMatch[RecordT]] = []
    for number, names in enumerate(_LEVELS[kind]):
        new = list(_matched(base, head, names, only_single=number > 0))
        matches += new
        used = {id(record) for match in new for record in (*match.base, *match.head)}
        base = [record for record in base if id(record) not in used]
        head = [record for record in head if id(record) not in used]
    matches += [RecordMatch(base=(), head=(record,)) for record in head]
    return [*matches, *(RecordMatch(base=(record,), head=()) for record in base)]


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
