"""The gate on agreement: no verdict may be worse than the one before.

Judges no arrays: the verdicts are those of the oracle, made when BASE and HEAD ran.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from sdpa_onnx.core.compare.gate_match import RecordMatch, RecordT, match_records
from sdpa_onnx.core.compare.gate_row import gate_record, reason
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.judge_records import ConformanceRecord
from sdpa_onnx.core.records.record_base import BaseRecord
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Record, SaturationRecord, TimingRecord
from sdpa_onnx.core.records.verdicts import Conformity, Outcome, Verdict

__all__ = ["agreement_gate"]

# From best to worst. A refusal or a failure is seen by whoever runs the model; a wrong number is not.
_ORDER = (
    *(Verdict.OK.value, Verdict.ROUNDING_LEVEL.value, "refused", Outcome.UNSUPPORTED.value, "crashed"),
    *(Outcome.FAILED.value, Outcome.DISAGREES.value, Verdict.SUSPICIOUS.value, Verdict.WRONG.value),
)
_CONFORMITY = {Conformity.RIGHT: "ok", Conformity.WRONG: "wrong", Conformity.REFUSED: "refused"}
_JUDGED = (AgreementRecord, ExportRecord, ConformanceRecord, SaturationRecord)
_RIGHT = (Verdict.OK.value, Verdict.ROUNDING_LEVEL.value)


def agreement_gate(base: Sequence[Record], head: Sequence[Record]) -> Iterator[GateRecord]:
    """Compare verdicts and outcomes; one record per judgement, and per arm of a comparison that runs no more."""
    yield from _whole_refusals(base, head)
    refused = _refused(base) ^ _refused(head)
    for kind in _JUDGED:
        sides = ([one for one in records if isinstance(one, kind)] for records in (base, head))
        before, now = ([one for one in side if _model(one) not in refused] for side in sides)
        yield from (_compared(match) for match in match_records(before, now))
    timed = ([one for one in records if isinstance(one, TimingRecord)] for records in (base, head))
    for match in match_records(*timed):
        if match.pair is not None and _standing(match.pair[0]) != _standing(match.pair[1]):
            yield _compared(match)


def _standing(record: BaseRecord) -> str:
    """The word that ranks a record: its verdict, or what became of it."""
    if record.outcome is Outcome.SKIPPED:
        return Outcome.SKIPPED.value
    if isinstance(record, ConformanceRecord) and record.verdict is not None:
        return _CONFORMITY.get(record.verdict, "crashed")
    verdict = getattr(record, "verdict", None) if isinstance(record, AgreementRecord) else None
    return str(verdict.value) if isinstance(verdict, Verdict) else record.outcome.value


def _whole_refusals(base: Sequence[Record], head: Sequence[Record]) -> Iterator[GateRecord]:
    """Models that one side ran and judged, and the other could not run at all: one record beside many."""
    alone = _refused(base) ^ _refused(head)
    for model in sorted(alone, key=repr):
        sides = [[one for one in records if _model(one) == model] for records in (base, head)]
        if all(sides):
            yield _compared(RecordMatch(base=(_worst(sides[0]),), head=(_worst(sides[1]),)))
        else:
            yield _compared(RecordMatch(base=tuple(sides[0][:1]), head=tuple(sides[1][:1])))


def _refused(records: Iterable[Record]) -> set[tuple[object, ...]]:
    """Models of which a record says as a whole that nothing was judged: it names no attention."""
    whole = (one for one in records if isinstance(one, AgreementRecord) and one.verdict is None and not one.site)
    return {key for one in whole if (key := _model(one)) is not None}


def _model(record: BaseRecord) -> tuple[object, ...] | None:
    if not isinstance(record, AgreementRecord):
        return None
    return record.target, record.case, record.form, record.opset, record.runtime


def _worst(records: Sequence[BaseRecord]) -> BaseRecord:
    return max(records, key=lambda record: _rank(_standing(record)))


def _rank(word: str) -> int:
    return _ORDER.index(word) if word in _ORDER else -1


def _compared(match: RecordMatch[RecordT]) -> GateRecord:
    """The word for one judgement; of several, the worst counts on either side."""
    before, now = (_worst(side) if side else None for side in (match.base, match.head))
    if before is None or now is None:
        return _one_sided(before or now, is_new=before is None)
    was, is_now = _standing(before), _standing(now)
    word = _word(was, is_now)
    renamed = _renamed(before, now)
    row = gate_record(
        Gate.AGREEMENT, word, now, base=was, head=is_now, evidence=_evidence(word, was, is_now, now) + renamed
    )
    return msgspec.structs.replace(row, amount=_amount(now))


def _amount(record: BaseRecord) -> float:
    """The largest error over what is allowed; -1 where nothing was judged, or the error is no number."""
    found = record.max_bound_ratio if isinstance(record, AgreementRecord) else -1.0
    return found if math.isfinite(found) and found > 0.0 else -1.0


def _word(was: str, now: str) -> GateVerdict:
    if was == now:
        return GateVerdict.SAME
    if Outcome.SKIPPED.value in (was, now):
        return GateVerdict.NOT_COMPARABLE
    return GateVerdict.REGRESSION if _rank(now) > _rank(was) else GateVerdict.BETTER


def _evidence(word: GateVerdict, was: str, now: str, record: BaseRecord) -> str:
    said = reason(record)
    match word:
        case GateVerdict.SAME:
            return f"{now} before and now." if not said or now in _RIGHT else f"{now} before and now: {said}"
        case GateVerdict.NOT_COMPARABLE:
            return f"Not asked in {'HEAD' if now == Outcome.SKIPPED.value else 'BASE'}: {said or 'no reason was told.'}"
        case _:
            return f"{now}, before {was}{f': {said}' if said and now not in _RIGHT else '.'}"


def _one_sided(record: BaseRecord | None, *, is_new: bool) -> GateRecord:
    if record is None:  # no match is without records
        raise ValueError("A match holds at least one record.")
    word = _standing(record)
    if is_new:
        bad = "" if word in _RIGHT else f" It is {word}: {reason(record) or 'no reason was told.'}"
        return gate_record(Gate.AGREEMENT, GateVerdict.APPEARED, record, head=word, evidence=f"Only in HEAD.{bad}")
    return gate_record(Gate.AGREEMENT, GateVerdict.DISAPPEARED, record, base=word, evidence="Only in BASE.")


def _renamed(before: BaseRecord, now: BaseRecord) -> str:
    """What differs in the names of two records that were matched by the rest."""
    values = {name: (getattr(before, name, ""), getattr(now, name, "")) for name in ("opset", "subject", "site", "arm")}
    names = [name for name, (was, is_now) in values.items() if was and is_now and was != is_now]
    return "".join(f" Its {name} was '{getattr(before, name)}'." for name in names)
