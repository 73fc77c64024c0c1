"""Runs the gates of a comparison of BASE with HEAD: agreement, graph, memory and time.

Pure: records in, gate records out. Each gate is implemented in its own module.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sdpa_onnx.core.compare.gate_agreement import agreement_gate
from sdpa_onnx.core.compare.gate_effects import PINNED, Machine
from sdpa_onnx.core.compare.gate_graph import graph_gate
from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gate_memory import memory_gate
from sdpa_onnx.core.compare.gate_row import with_outcome
from sdpa_onnx.core.compare.gate_time import TimeComparison, paired_comparisons, stored_comparisons, time_gate
from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.records import Record, TimingRecord

__all__ = ["RunSide", "compare_paired", "compare_stored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSide:
    """Records of BASE or HEAD, and the machine that made them."""

    records: Sequence[Record]
    machine: Machine = field(default_factory=Machine)


def compare_stored(base: RunSide, head: RunSide, limits: GateLimits, *, pinned: str = PINNED) -> list[GateRecord]:
    """Compare two stored runs; times are compared by the ratio of the ratios to the common pinned baseline.

    Args:
        base, head: Records and machine of each run.
        limits: Allowed changes.
        pinned: Arm or runtime that did not change between the runs.
    """
    questions = list(stored_comparisons(base.records, head.records, (base.machine, head.machine), pinned))
    return _gate_records(base.records, head.records, questions, limits)


def compare_paired(
    base: Sequence[Record],
    head: Sequence[Record],
    timed: Sequence[tuple[TimingRecord, TimingRecord]],
    limits: GateLimits,
) -> list[GateRecord]:
    """Compare BASE and HEAD that were run and timed together.

    Args:
        base, head: Records of each side, with equal names for equal things.
        timed: Timings of BASE and HEAD in one interleaved comparison with BASE as the baseline.
        limits: Allowed changes.
    """
    return _gate_records(base, head, list(paired_comparisons(timed)), limits)


def _gate_records(
    base: Sequence[Record], head: Sequence[Record], questions: Sequence[TimeComparison], limits: GateLimits
) -> list[GateRecord]:
    gates: tuple[tuple[Gate, Iterable[GateRecord]], ...] = (
        (Gate.AGREEMENT, agreement_gate(base, head)),
        (Gate.GRAPH, graph_gate(base, head, limits)),
        (Gate.MEMORY, memory_gate(base, head, limits)),
        (Gate.TIME, time_gate(questions, limits)),
    )
    return [with_outcome(row, limits) for gate, rows in gates if gate not in limits.skipped for row in rows]
