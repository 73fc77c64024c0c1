"""A row of the gates: what it is of, taken over from the record that it judges, and whether it fails."""

import msgspec

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.record_base import BaseRecord
from sdpa_onnx.core.records.verdicts import Outcome

__all__ = ["gate_record", "percent", "reason", "with_outcome"]

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
    "subject",
    "site",
    "inputs",
    "arm",
    "threads",
)


def gate_record(
    gate: Gate,
    word: GateVerdict,
    of: BaseRecord,
    *,
    base: str = "",
    head: str = "",
    evidence: str,
    warnings: tuple[str, ...] = (),
) -> GateRecord:
    """A row about the same thing as another record."""
    names = {name: getattr(of, name) for name in _NAMES if hasattr(of, name)}
    return GateRecord(**names, gate=gate, word=word, base=base, head=head, evidence=evidence, warnings=warnings)


def reason(record: BaseRecord) -> str:
    """Why a record is not ok, or what the judge said; "" if nothing was told."""
    return " ".join((getattr(record, "diagnosis", "") or record.reason).split())


def percent(share: float) -> str:
    """A limit as the user gave it: 0.05 is 5 %."""
    return f"{100 * share:g} %"


def with_outcome(row: GateRecord, limits: GateLimits) -> GateRecord:
    """The row with the outcome that the limits give it."""
    word, evidence = row.word, row.evidence
    if word is GateVerdict.REGRESSION and row.gate in limits.allowed:
        word, evidence = GateVerdict.WORSE, f"{evidence} Allowed here (--allow {row.gate.value})."
    failing = word is GateVerdict.REGRESSION or (limits.strict and word.is_open and row.gate not in limits.allowed)
    outcome = Outcome.DISAGREES if failing else Outcome.SKIPPED if word.is_open else Outcome.OK
    told = evidence if outcome is not Outcome.OK else ""
    return msgspec.structs.replace(row, word=word, evidence=evidence, outcome=outcome, reason=told)
