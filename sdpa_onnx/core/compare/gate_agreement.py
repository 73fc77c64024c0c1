"""The agreement gate: fails if a verdict in HEAD is worse than in BASE.

Compares no arrays; the verdicts were decided against the oracle when BASE and HEAD ran.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from sdpa_onnx.core.compare.gate_match import RecordMatch, RecordT, match_records
from sdpa_onnx.core.compare.gate_row import gate_record, reason, verdict_in_words
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.judge_records import ConformanceRecord
from sdpa_onnx.core.records.record_base import BaseRecord
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Record, SaturationRecord, TimingRecord
from sdpa_onnx.core.records.verdicts import Conformity, Outcome, Verdict

__all__ = ["agreement_gate"]

# From best to worst. A user notices a refusal or a failure, but not a wrong number.
_ORDER = (
    *(Verdict.OK.value, Verdict.ROUNDING_LEVEL.value, "refused", Outcome.UNSUPPORTED.value, "crashed"),
    *(Outcome.FAILED.value, Outcome.DISAGREES.value, Verdict.SUSPICIOUS.value, Verdict.WRONG.value),
)
_CONFORMITY = {
    Conformity.RIGHT: "ok",
    Conformity.SUSPICIOUS: "suspicious",
    Conformity.WRONG: "wrong",
    Conformity.REFUSED: "refused",
}
_JUDGED = (AgreementRecord, ExportRecord, ConformanceRecord, SaturationRecord)
# No output was judged. A refused feature of an operator is not among them: that is its behaviour.
_NOT_JUDGED = (Outcome.UNSUPPORTED.value, "crashed", Outcome.FAILED.value)
_RIGHT = (Verdict.OK.value, Verdict.ROUNDING_LEVEL.value)


def agreement_gate(base: Sequence[Record], head: Sequence[Record]) -> Iterator[GateRecord]:
    """Compare verdicts and outcomes; one gate record per verdict, and per timed arm whose outcome changed."""
    yield from _model_refusals(base, head)
    refused = _refused(base) ^ _refused(head)
    for kind in _JUDGED:
        sides = ([one for one in records if isinstance(one, kind)] for records in (base, head))
        before, now = ([one for one in side if _model(one) not in refused] for side in sides)
        yield from (_compared(match) for match in match_records(before, now))
    timed = ([one for one in records if isinstance(one, TimingRecord)] for records in (base, head))
    for match in match_records(*timed):
        if match.pair is not None and _status(match.pair[0]) != _status(match.pair[1]):
            yield _compared(match)


def _status(record: BaseRecord) -> str:
    """Return the status by which a record is ranked: its verdict, else its outcome."""
    if record.outcome is Outcome.SKIPPED:
        return Outcome.SKIPPED.value
    if isinstance(record, ConformanceRecord) and record.verdict is not None:
        return _CONFORMITY.get(record.verdict, "crashed")
    verdict = getattr(record, "verdict", None) if isinstance(record, AgreementRecord) else None
    return str(verdict.value) if isinstance(verdict, Verdict) else record.outcome.counted.value


def _model_refusals(base: Sequence[Record], head: Sequence[Record]) -> Iterator[GateRecord]:
    """Compare models that one side judged and the other could not run at all, which has a single record."""
    alone = _refused(base) ^ _refused(head)
    before, now = _by_model(base, alone), _by_model(head, alone)
    for model in sorted(alone, key=repr):
        sides = [before[model], now[model]]
        if all(sides):
            yield _compared(RecordMatch(base=(_worst(sides[0]),), head=(_worst(sides[1]),)))
        else:
            yield _compared(RecordMatch(base=tuple(sides[0][:1]), head=tuple(sides[1][:1])))


def _by_model(records: Iterable[Record], models: Collection[tuple[object, ...]]) -> dict[object, list[Record]]:
    """The records of each of these models."""
    found: dict[object, list[Record]] = {model: [] for model in models}
    for record in records:
        if (mine := found.get(_model(record))) is not None:
            mine.append(record)
    return found


def _refused(records: Iterable[Record]) -> set[tuple[object, ...]]:
    """Find models with a record without verdict and site: the model was not judged at all."""
    whole = (one for one in records if isinstance(one, AgreementRecord) and one.verdict is None and not one.site)
    return {key for one in whole if (key := _model(one)) is not None}


def _model(record: BaseRecord) -> tuple[object, ...] | None:
    if not isinstance(record, AgreementRecord):
        return None
    return record.target, record.case, record.form, record.opset, record.runtime


def _worst(records: Sequence[BaseRecord]) -> BaseRecord:
    return max(records, key=lambda record: _rank(_status(record)))


def _rank(status: str) -> int:
    return _ORDER.index(status) if status in _ORDER else -1


def _compared(match: RecordMatch[RecordT]) -> GateRecord:
    """Compare matched records; if there are several, the worst of each side counts."""
    before, now = (_worst(side) if side else None for side in (match.base, match.head))
    if before is None or now is None:
        return _one_sided(before or now, is_new=before is None)
    was, is_now = _status(before), _status(now)
    verdict = _verdict(was, is_now)
    evidence = _evidence(verdict, was, is_now, now) + _renamed(before, now)
    row = gate_record(Gate.AGREEMENT, verdict, now, base=was, head=is_now, evidence=evidence)
    return msgspec.structs.replace(row, amount=_amount(now))


def _amount(record: BaseRecord) -> float | None:
    """Largest error over its bound; None if nothing was judged or the error is not finite."""
    found = record.max_bound_ratio if isinstance(record, AgreementRecord) else None
    return found if found is not None and math.isfinite(found) and found > 0.0 else None


def _verdict(was: str, now: str) -> GateVerdict:
    if Outcome.SKIPPED.value in (was, now) or was == now in _NOT_JUDGED:
        return GateVerdict.NOT_COMPARABLE  # two failures are no tie: no output was judged
    if was == now:
        return GateVerdict.SAME
    return GateVerdict.REGRESSION if _rank(now) > _rank(was) else GateVerdict.BETTER


def _evidence(verdict: GateVerdict, was: str, now: str, record: BaseRecord) -> str:
    why = reason(record)
    subject = record.subject if isinstance(record, AgreementRecord) else None
    was_words, now_words = verdict_in_words(was, subject), verdict_in_words(now, subject)
    match verdict:
        case GateVerdict.SAME:
            return f"{now_words} before and now{f': {why}' if why and now not in _RIGHT else '.'}"
        case GateVerdict.NOT_COMPARABLE if was == now:
            return f"Not comparable: {now} in BASE and in HEAD: {why or 'no reason recorded.'}"
        case GateVerdict.NOT_COMPARABLE:
            return f"Skipped in {'HEAD' if now == Outcome.SKIPPED.value else 'BASE'}: {why or 'no reason recorded.'}"
        case _:
            return f"{now_words}, {was_words} before{f': {why}' if why and now not in _RIGHT else '.'}"


def _one_sided(record: BaseRecord | None, *, is_new: bool) -> GateRecord:
    if record is None:  # no match is without records
        raise ValueError("A match holds at least one record.")
    status = _status(record)
    if is_new:
        bad = "" if status in _RIGHT else f" It is {status}: {reason(record) or 'no reason recorded.'}"
        return gate_record(Gate.AGREEMENT, GateVerdict.APPEARED, record, head=status, evidence=f"Only in HEAD.{bad}")
    return gate_record(Gate.AGREEMENT, GateVerdict.DISAPPEARED, record, base=status, evidence="Only in BASE.")


def _renamed(before: BaseRecord, now: BaseRecord) -> str:
    """Describe the names that differ between two matched records."""
    values = {name: (getattr(before, name, ""), getattr(now, name, "")) for name in ("opset", "subject", "site", "arm")}
    names = [name for name, (was, is_now) in values.items() if was and is_now and was != is_now]
    return "".join(f" Its {name} was '{getattr(before, name)}'." for name in names)
