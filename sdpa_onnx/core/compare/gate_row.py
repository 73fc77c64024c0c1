"""Creates gate records with the identity of the compared record, and decides whether they fail.

Compares no values; each gate does that itself.
"""

import msgspec

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.record_base import BaseRecord
from sdpa_onnx.core.records.records import Subject
from sdpa_onnx.core.records.verdicts import Outcome, Verdict

__all__ = ["gate_record", "percent", "reason", "verdict_in_words", "with_outcome"]

_NAMES = (
    "target",
    "case",
    "form",
    "opset",
    "runtime",
    "dtype",
    "spec",
    "past_seq_len",
    "sizes",
    "axes",
    "subject",
    "site",
    "inputs",
    "arm",
    "threads",
)


def gate_record(
    gate: Gate,
    verdict: GateVerdict,
    of: BaseRecord,
    *,
    base: str = "",
    head: str = "",
    evidence: str,
    warnings: tuple[str, ...] = (),
) -> GateRecord:
    """Create a gate record with the identity fields of another record."""
    names = {name: getattr(of, name) for name in _NAMES if hasattr(of, name)}
    return GateRecord(**names, gate=gate, word=verdict, base=base, head=head, evidence=evidence, warnings=warnings)


def reason(record: BaseRecord) -> str:
    """Return a record's diagnosis or reason in one line; "" if it has none."""
    return " ".join((getattr(record, "diagnosis", "") or record.reason).split())


def verdict_in_words(verdict: str, subject: Subject | None) -> str:
    """The verdict of a side as it is printed. An output has no proven bound: one that is not ok differs."""
    return "differs" if subject is Subject.OUTPUT and verdict == Verdict.SUSPICIOUS.value else verdict


def percent(share: float) -> str:
    """Format a share in percent: 0.05 is 5 %."""
    return f"{100 * share:g} %"


def with_outcome(row: GateRecord, limits: GateLimits) -> GateRecord:
    """Set the outcome of a gate record according to the limits."""
    verdict, evidence = row.word, row.evidence
    if verdict is GateVerdict.REGRESSION and row.gate in limits.allowed:
        verdict, evidence = GateVerdict.WORSE, f"{evidence} Allowed here (--allow {row.gate.value})."
    fails = verdict is GateVerdict.REGRESSION or (limits.strict and verdict.is_open and row.gate not in limits.allowed)
    outcome = Outcome.DISAGREES if fails else Outcome.SKIPPED if verdict.is_open else Outcome.OK
    why = evidence if outcome is not Outcome.OK else ""
    return msgspec.structs.replace(row, word=verdict, evidence=evidence, outcome=outcome, reason=why)
