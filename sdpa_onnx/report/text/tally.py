"""Outcomes of records, counted and grouped; if a record contradicts itself, the worse outcome counts."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.records import (
    AgreementRecord,
    AttentionRecord,
    ConformanceRecord,
    ExportRecord,
    FormRecord,
    LocatedRecord,
    Outcome,
    PlantedRecord,
    Record,
    RuntimeRecord,
    SaturationRecord,
    TimingRecord,
    Verdict,
)
from sdpa_onnx.report.text.labels import join_words, plain

__all__ = [
    "FailureGroup",
    "baked_words",
    "bound_ratio",
    "has_bound_ratio",
    "kind_noun",
    "not_ok",
    "outcome_of",
    "reason_of",
]

_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
_SEVERITY = (Outcome.DISAGREES, Outcome.FAILED, Outcome.UNSUPPORTED, Outcome.SKIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Records of one kind that are not ok for the same reason."""

    outcome: Outcome
    noun: str
    reason: str
    records: tuple[Record, ...]


def kind_noun(record: Record) -> str:
    """The noun for a record of this kind."""
    nouns: dict[type, str] = {
        AgreementRecord: "check",
        TimingRecord: "timing",
        ExportRecord: "export",
        SaturationRecord: "saturation cell",
        ConformanceRecord: "feature",
        PlantedRecord: "planted fault",
        LocatedRecord: "search for the first bad node",
        AttentionRecord: "attention",
        RuntimeRecord: "runtime",
        FormRecord: "form",
    }
    return nouns[type(record)]


def outcome_of(record: Record) -> Outcome:
    """The outcome, or a worse one if the record's own figures contradict it.

    A report must not print "ok" for a proven error or a baked axis because the writer of the record forgot to set the
    outcome.
    """
    if record.outcome is not Outcome.OK:
        return record.outcome.counted
    if isinstance(record, AgreementRecord):
        if record.verdict is None:
            return Outcome.SKIPPED
        # Not `> 1`, because of NaN.
        wrong = record.verdict is Verdict.WRONG or record.not_finite or not (record.max_bound_ratio or 0.0) <= 1
        return Outcome.DISAGREES if wrong else Outcome.OK
    return Outcome.DISAGREES if isinstance(record, ExportRecord) and record.baked else Outcome.OK


def reason_of(record: Record) -> str:
    """Why a record is not ok, in one line; never empty."""
    reasons = [record.reason]
    match record:
        case AgreementRecord(verdict=None):
            reasons += ["no verdict was recorded"]
        case AgreementRecord():
            reasons = [record.diagnosis, record.reason, "the error exceeds its proven bound"]
        case ExportRecord():
            reasons += [baked_words(record)]
        case _:
            pass
    return next((plain(text) for text in reasons if text), "no reason was recorded")


def baked_words(record: ExportRecord) -> str:
    """The baked axes and their nodes."""
    words = [f"{baked.axis} at {baked.node}" if baked.node else baked.axis for baked in record.baked]
    return f"baked: {join_words(words)}" if words else ""


def bound_ratio(record: AgreementRecord) -> float:
    """Largest error over its bound, for sorting; infinite for an output that is not finite, 0 if nothing was judged."""
    ratio = record.max_bound_ratio or 0.0
    return math.inf if record.not_finite or math.isnan(ratio) else ratio


def has_bound_ratio(record: AgreementRecord) -> bool:
    """Whether an error over its bound is known: not if no element could be compared, as of a wrong shape."""
    return record.max_bound_ratio is not None or bool(record.not_finite)


def _badness(record: Record) -> float:
    return bound_ratio(record) if isinstance(record, AgreementRecord) else 0.0


def not_ok(records: Sequence[Record]) -> list[FailureGroup]:
    """Group everything that is not ok by outcome, kind and reason; the worst and the largest groups first.

    Reasons that differ only in numbers are one group with the reason of its worst record.
    """
    gathered: dict[tuple[Outcome, str, str], list[Record]] = {}
    for record in records:
        if isinstance(record, PlantedRecord | LocatedRecord):
            continue  # not judgements; they have their own tables
        outcome = outcome_of(record)
        if outcome is not Outcome.OK:
            kind_of_reason = _NUMBER.sub("#", reason_of(record))
            gathered.setdefault((outcome, kind_noun(record), kind_of_reason), []).append(record)
    groups = [
        FailureGroup(outcome=outcome, noun=noun, reason=reason_of(max(members, key=_badness)), records=tuple(members))
        for (outcome, noun, _), members in gathered.items()
    ]
    return sorted(groups, key=lambda group: (_SEVERITY.index(group.outcome), -len(group.records)))
