"""The memory gate: fails if peak memory above the loaded state grows by more than a share and a size.

Compares recorded peaks; measures nothing.
"""

from collections.abc import Iterator, Sequence

import msgspec

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gate_match import match_records
from sdpa_onnx.core.compare.gate_row import gate_record, percent
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import Record, TimingRecord

__all__ = ["memory_gate"]

_MIB = 2**20


def memory_gate(base: Sequence[Record], head: Sequence[Record], limits: GateLimits) -> Iterator[GateRecord]:
    """Compare peak memory where both sides measured it; one gate record per timed arm."""
    timed = ([record for record in side if isinstance(record, TimingRecord)] for side in (base, head))
    for match in match_records(*timed):
        if match.pair is not None and min(record.peak_memory_bytes for record in match.pair) >= 0:
            yield _compared(*match.pair, limits)


def _compared(base: TimingRecord, head: TimingRecord, limits: GateLimits) -> GateRecord:
    before, now = base.peak_memory_bytes, head.peak_memory_bytes
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
