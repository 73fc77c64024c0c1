"""How large a finding of a gate is, and how large an entry that is written for it lets it become.

One number a finding, by gate: agreement: the largest error over what was allowed; graph: nodes that run, or bytes of
the file, over BASE's; memory: peak in bytes; time: ratio to BASE. Reads no file.
"""

import math

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.record_base import BaseRecord

__all__ = ["allowance", "is_within"]

# An error of other inputs or another processor is easily so many times as large. Twice is also what `compare` allows an
# output beside BASE's own.
_ERROR_FACTOR = 2.0
_LIMITS = GateLimits()
_DIGITS = 4


def is_within(record: BaseRecord, at_most: float) -> bool:
    """Whether a finding is no larger than an entry allows; no finding of unknown size is.

    Of a time what is proven counts, the lower end of its interval.
    """
    if not isinstance(record, GateRecord):
        return False
    found = record.ratio_low if record.gate is Gate.TIME else _figure(record)
    return 0.0 < found <= at_most


def allowance(record: BaseRecord) -> float | None:
    """What an entry for this finding allows: its size and some head-room; None where its size is not known.

    The head-room: of an error a factor of two; of the rest what the gate itself allows by default; of a time beyond the
    upper end of its interval.
    """
    if not isinstance(record, GateRecord):
        return None
    allowed = _with_head_room(record)
    if not (math.isfinite(allowed) and allowed > 0.0):
        return None
    return float(f"{allowed:.{_DIGITS}g}")


def _with_head_room(record: GateRecord) -> float:
    match record.gate:
        case Gate.AGREEMENT:
            return _figure(record) * _ERROR_FACTOR
        case Gate.GRAPH:
            return _figure(record) * (1.0 + _LIMITS.more_nodes)
        case Gate.MEMORY:
            return _figure(record) * (1.0 + _LIMITS.more_memory)
        case Gate.TIME:
            return record.ratio_high * (1.0 + max(record.margin, 0.0))


def _figure(record: GateRecord) -> float:
    return float(record.head_bytes) if record.gate is Gate.MEMORY else record.amount
