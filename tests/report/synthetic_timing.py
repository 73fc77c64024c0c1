"""Synthetic records of comparisons in worker processes, and how tests read the report of them; no machine is used."""

import math
from collections.abc import Sequence

import msgspec

from sdpa_onnx.core.records.records import Outcome, Record, TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.paired import RatioEstimate
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.text.table import Table
from tests.report.synthetic import case_of, header, sizes_of, timings_of

FUSED, DECOMPOSED, TORCH = "ort-cpu attention 23", "ort-cpu decomposed 18", "torch"
CLOCKS = "The ratio is 0.985 by wall time and 1.030 by CPU time: one arm waits for something."
DEGREES = 11.0
# Standard error of a log ratio of four launches, and the degrees of freedom that go with it.
STANDARD_ERROR = 0.0035


def judged_arm(
    record: TimingRecord, ratio: float, verdict: RatioVerdict, *, confidence: float = 0.99, **fields: object
) -> TimingRecord:
    """The arm as the paired test would record it: its ratio, a matching interval, and the requested verdict."""
    estimate = RatioEstimate(
        log_ratio=math.log(ratio), standard_error=STANDARD_ERROR, degrees=DEGREES, launches=record.launches
    )
    low, high = estimate.interval(1 - confidence)
    told = {
        "ratio": ratio,
        "ratio_low": low,
        "ratio_high": high,
        "confidence": confidence,
        "verdict": verdict,
        "log_ratio_se": STANDARD_ERROR,
        "degrees": DEGREES,
        "detectable": estimate.detectable(1 - confidence),
        "ratio_wall": ratio,
        "ratio_cpu": ratio,
    }
    return msgspec.structs.replace(record, **(told | fields))


def judged(
    verdicts: dict[str, tuple[float, RatioVerdict]] | None = None, *, seq_len: int = 512, confidence: float = 0.99
) -> list[TimingRecord]:
    """One comparison of torch and two graphs in worker processes.

    Args:
        verdicts: Ratio and verdict of each graph.
    """
    asked = verdicts or {DECOMPOSED: (0.96, RatioVerdict.FASTER), FUSED: (0.90, RatioVerdict.FASTER)}
    arms = [with_costs(record, confidence=confidence) for record in timings_of("sdpa", case_of(seq_len=seq_len))]
    return [judged_arm(arm, *asked[arm.arm], confidence=confidence) if arm.arm in asked else arm for arm in arms]


def with_costs(record: TimingRecord, **fields: object) -> TimingRecord:
    """The arm with all measurements besides its steady time."""
    seconds = record.median_seconds
    costs = {
        "launches": 4,
        "create_seconds": 0.0123,
        "first_seconds": 3.1 * seconds,
        "new_length_seconds": 1.4 * seconds,
        "idle_seconds": 1.2 * seconds,
        "kernel_seconds": 0.94 * seconds,
        "host_seconds": 0.06 * seconds,
        "peak_memory_bytes": 12_900_000,
        "bytes_moved": 4 * 1024 * record.sizes.q_seq_len,
        "bound_by": "exponentials",
        "runtime_version": "torch 2.13.0" if record.runtime == "torch" else "onnxruntime 1.32.0",
    }
    return msgspec.structs.replace(record, **(costs | fields))


def noisy(seq_len: int = 256) -> list[TimingRecord]:
    """A comparison in which the time of a clone of the baseline differs."""
    words = {DECOMPOSED: (0.70, RatioVerdict.NOISY), FUSED: (0.60, RatioVerdict.NOISY)}
    return judged(words, seq_len=seq_len)


def not_timed(outcome: Outcome, reason: str, arm: str = "ort-cpu blocked 18") -> TimingRecord:
    """An arm without a time, with those of length 512."""
    case = case_of()
    return TimingRecord(
        case=case.case_id,
        target="sdpa",
        form="blocked",
        opset=18,
        runtime="ort-cpu",
        group=f"sdpa/{case.case_id}",
        sizes=sizes_of(case),
        dtype="float32",
        arm=arm,
        baseline=TORCH,
        outcome=outcome,
        reason=reason,
    )


def launch_records() -> list[Record]:
    """A run with every verdict, a worker that died, and a comparison that the machine could not decide."""
    open_words = {DECOMPOSED: (1.006, RatioVerdict.EQUAL), FUSED: (0.985, RatioVerdict.INCONCLUSIVE)}
    slower = {DECOMPOSED: (1.31, RatioVerdict.SLOWER), FUSED: (0.97, RatioVerdict.FASTER)}
    undecided = judged(open_words, seq_len=1024)
    undecided[2] = msgspec.structs.replace(undecided[2], launches_needed=6, ratio_cpu=1.03, warnings=(CLOCKS,))
    busy = "Undecidable on this machine now: 2 threads are asked for and 1 core is idle."
    skipped = [
        msgspec.structs.replace(one, threads=2, outcome=Outcome.SKIPPED, reason=busy, verdict=None)
        for one in judged(seq_len=2048)
    ]
    return [
        *judged(),
        not_timed(Outcome.FAILED, "The worker of ort-cpu blocked 18 was killed by signal 11 (SIGSEGV)."),
        *judged(slower, seq_len=64),
        *noisy(),
        *undecided,
        *skipped,
    ]


def two_versions() -> list[TimingRecord]:
    """The same graph on two versions of a runtime, one in an environment of its own."""
    torch, _, fused = judged()
    old = msgspec.structs.replace(fused, arm="ort-cpu@old", python="old", runtime_version="onnxruntime 1.31.0")
    new = msgspec.structs.replace(fused, arm="ort-cpu", options={"intra_op.allow_spinning": "1"})
    return [torch, old, new]


def table_of(records: Sequence[Record], title: str) -> Table:
    """The table of this title."""
    (table,) = [table for table in all_tables(records, header().ceilings) if table.title == title]
    return table


def cells(records: Sequence[Record], title: str, head: str) -> list[str]:
    """One column of a table."""
    table = table_of(records, title)
    place = [column.head for column in table.columns].index(head)
    return [row[place] for section in table.sections for row in section.rows]
