"""The gates of a comparison: BASE beside HEAD in agreement, graph, memory and time. Pure: records in, rows out.

Each gate has a module of its own; here they are asked in order, and the limits say what fails.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sdpa_onnx.core.compare.gate_agreement import agreement_gate
from sdpa_onnx.core.compare.gate_effects import PINNED, Machine
from sdpa_onnx.core.compare.gate_graph import graph_gate
from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gate_memory import memory_gate
from sdpa_onnx.core.compare.gate_row import with_outcome
from sdpa_onnx.core.compare.gate_time import TimeQuestion, paired_questions, stored_questions, time_gate
from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.records import Record, TimingRecord

__all__ = ["RunSide", "compare_paired", "compare_stored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSide:
    """BASE or HEAD: what it recorded, and where that was."""

    records: Sequence[Record]
    machine: Machine = field(default_factory=Machine)


def compare_stored(base: RunSide, head: RunSide, limits: GateLimits, *, pinned: str = PINNED) -> list[GateRecord]:
    """Compare two stored runs; time by the ratio of the ratios to their common pinned baseline.

    Args:
        base, head: What either recorded.
        limits: What is allowed.
        pinned: Arm or runtime that did not change between the runs.
    """
    questions = list(stored_questions(base.records, head.records, (base.machine, head.machine), pinned))
    return _asked(base.records, head.records, questions, limits)


def compare_paired(
    base: Sequence[Record],
    head: Sequence[Record],
    timed: Sequence[tuple[TimingRecord, TimingRecord]],
    limits: GateLimits,
) -> list[GateRecord]:
    """Compare what was run here and now.

    Args:
        base, head: Judgements and facts of either, named alike where they are of the same thing.
        timed: BASE and HEAD where they were timed interleaved, BASE being the baseline.
        limits: What is allowed.
    """
    return _asked(base, head, list(paired_questions(timed)), limits)


def _asked(
    base: Sequence[Record], head: Sequence[Record], questions: Sequence[TimeQuestion], limits: GateLimits
) -> list[GateRecord]:
    gates: tuple[tuple[Gate, Iterable[GateRecord]], ...] = (
        (Gate.AGREEMENT, agreement_gate(base, head)),
        (Gate.GRAPH, graph_gate(base, head, limits)),
        (Gate.MEMORY, memory_gate(base, head, limits)),
        (Gate.TIME, time_gate(questions, limits)),
    )
    return [with_outcome(row, limits) for gate, rows in gates if gate not in limits.skipped for row in rows]
