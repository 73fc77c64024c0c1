"""The gate on memory: the peak above the loaded state, worse by a share and by a size before it fails."""

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
    """Compare peak memory wherever both sides have measured it; one row per timed arm."""
    timed = ([one for one in side if isinstance(one, TimingRecord)] for side in (base, head))
    for match in match_records(*timed):
        if match.pair is not None and min(record.peak_memory_bytes for record in match.pair) >= 0:
            yield _compared(*match.pair, limits)


def _compared(base: TimingRecord, head: TimingRecord, limits: GateLimits) -> GateRecord:
    before, now = base.peak_memory_bytes, head.peak_memory_bytes
    word = GateVerdict.SAME
    if _is_more(before, now, limits):
        word = GateVerdict.REGRESSION
    elif _is_more(now, before, limits):
        word = GateVerdict.BETTER
    allowed = f"the {percent(limits.more_memory)} and the {_size(limits.more_memory_bytes)}"
    evidence = f"The peak above the loaded state is {_size(now)}, before {_size(before)}."
    if word is GateVerdict.REGRESSION:
        evidence += f" It grew by more than {allowed} that are allowed."
    row = gate_record(Gate.MEMORY, word, head, base=_size(before), head=_size(now), evidence=evidence)
    return msgspec.structs.replace(row, base_bytes=before, head_bytes=now)


def _is_more(before: int, now: int, limits: GateLimits) -> bool:
    return now - before > limits.more_memory_bytes and now - before > limits.more_memory * before


def _size(number: int) -> str:
    return f"{number / _MIB:.1f} MiB"
