"""Compute the size of a gate finding, and the largest size that an entry for it allows.

One number per finding, by gate: agreement: the largest error over its limit; graph: nodes that run, or bytes of
the file, over BASE's; memory: peak in bytes; time: ratio to BASE. Reads no file.
"""

import math

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.record_base import BaseRecord

__all__ = ["allowance", "is_within"]

# With other inputs or another processor an error is easily this many times larger. `compare` also allows an output
# twice the error of BASE.
_ERROR_FACTOR = 2.0
_LIMITS = GateLimits()
_DIGITS = 4


def is_within(record: BaseRecord, at_most: float) -> bool:
    """Whether a finding is no larger than an entry allows; false for a finding of unknown size.

    For a time the lower end of its interval counts, which is proven.
    """
    if not isinstance(record, GateRecord):
        return False
    found = record.ratio_low if record.gate is Gate.TIME else _figure(record)
    return found is not None and 0.0 < found <= at_most


def allowance(record: BaseRecord) -> float | None:
    """The largest size that an entry for this finding allows: its size plus head-room; None if its size is unknown.

    The head-room is a factor of two for an error; for the other gates it is the default limit of the gate, for a time
    added to the upper end of its interval.
    """
    if not isinstance(record, GateRecord):
        return None
    allowed = _with_head_room(record)
    if allowed is None or not (math.isfinite(allowed) and allowed > 0.0):
        return None
    return float(f"{allowed:.{_DIGITS}g}")


def _with_head_room(record: GateRecord) -> float | None:
    found = record.ratio_high if record.gate is Gate.TIME else _figure(record)
    if found is None:
        return None
    match record.gate:
        case Gate.AGREEMENT:
            return found * _ERROR_FACTOR
        case Gate.GRAPH:
            return found * (1.0 + _LIMITS.more_nodes)
        case Gate.MEMORY:
            return found * (1.0 + _LIMITS.more_memory)
        case Gate.TIME:
            return found * (1.0 + max(record.margin or 0.0, 0.0))


def _figure(record: GateRecord) -> float | None:
    return record.head_bytes if record.gate is Gate.MEMORY else record.amount
