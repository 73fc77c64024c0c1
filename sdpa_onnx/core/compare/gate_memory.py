"""The memory gate: fails if peak memory above the loaded state grows by more than a share and a size.

Compares recorded peaks; measures nothing.
"""

from collections.abc import Iterator, Sequence

import msgspec

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gate_match import match_records
from sdpa_onnx.core.compare.gate_row import gate_record, percent, reason
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.core.records.verdicts import Outcome

__all__ = ["memory_gate"]

_MIB = 2**20


def memory_gate(base: Sequence[Record], head: Sequence[Record], limits: GateLimits) -> Iterator[GateRecord]:
    """Compare peak memory where a side measured it; one gate record per timed arm."""
    timed = ([record for record in side if isinstance(record, TimingRecord)] for side in (base, head))
    for match in match_records(*timed):
        if match.pair is not None:
            before, now = (record.peak_memory_bytes for record in match.pair)
            if before is not None and now is not None:
                yield _compared(match.pair[1], before, now, limits)
            elif before is not None or now is not None:
                yield from _not_measured(*match.pair)


def _not_measured(base: TimingRecord, head: TimingRecord) -> Iterator[GateRecord]:
    """The gate record if only one side has a peak because the other did not run."""
    side, missing = ("BASE", base) if base.peak_memory_bytes is None else ("HEAD", head)
    if missing.outcome is not Outcome.OK:
        why = reason(missing) or "no reason was recorded."
        evidence = f"Not comparable: the memory of {side} was not measured: {why}"
        yield gate_record(Gate.MEMORY, GateVerdict.NOT_COMPARABLE, head, evidence=evidence)


def _compared(head: TimingRecord, before: int, now: int, limits: GateLimits) -> GateRecord:
    verdict = GateVerdict.SAME
    if _is_more(before, now, limits):
        verdict = GateVerdict.REGRESSION
    elif _is_more(now, before, limits):
        verdict = GateVerdict.BETTER
    allowed = f"{percent(limits.more_memory)} and {_size(limits.more_memory_bytes)}"
    evidence = f"The peak above the loaded state is {_size(now)}, before {_size(before)}."
    if verdict is GateVerdict.REGRESSION:
        evidence += f" It grew by more than the allowed {allowed}."
    row = gate_record(Gate.MEMORY, verdict, head, base=_size(before), head=_size(now), evidence=evidence)
    return msgspec.structs.replace(row, base_bytes=before, head_bytes=now)


def _is_more(before: int, now: int, limits: GateLimits) -> bool:
    return now - before > limits.more_memory_bytes and now - before > limits.more_memory * before


def _size(number: int) -> str:
    return f"{number / _MIB:.1f} MiB"
