"""Compare two files of pytest-benchmark: our records are gated, the timings of other tools are only listed.

Gives no verdict for the timings of other tools: each arm was timed alone, at one moment of one machine.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from sdpa_onnx.core.compare.benchmark_json import OtherBenchmark
from sdpa_onnx.core.compare.gate_effects import Machine
from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gate_row import with_outcome
from sdpa_onnx.core.compare.gates import RunSide, compare_stored
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.workflows.compare.benchmark_file import read_benchmarks

__all__ = ["compare_benchmarks"]

# A larger ratio in a file of another tool means that the file is corrupt.
_MOST_RATIO = 1e6


def compare_benchmarks(base: Path, head: Path, limits: GateLimits, *, pinned: str) -> list[GateRecord]:
    """Compare two files.

    Raises:
        RecordFormatError: If one cannot be read.
    """
    before, now = read_benchmarks(base), read_benchmarks(head)
    sides = [
        RunSide(records=read.records, machine=Machine(environment=read.environment, versions=read.versions))
        for read in (before, now)
    ]
    rows = compare_stored(sides[0], sides[1], limits, pinned=pinned)
    if Gate.TIME in limits.skipped:
        return rows
    return [*rows, *(with_outcome(row, limits) for row in _others(before.others, now.others))]


def _others(base: Sequence[OtherBenchmark], head: Sequence[OtherBenchmark]) -> Iterator[GateRecord]:
    """The timings of other tools, one row each; never gated."""
    before = {one.fullname: one for one in base}
    now = {one.fullname: one for one in head}
    for name in dict.fromkeys((*now, *before)):
        if name not in before:
            yield _row(name, GateVerdict.APPEARED, "Only in HEAD.")
        elif name not in now:
            yield _row(name, GateVerdict.DISAPPEARED, "Only in BASE.")
        else:
            was, is_now = before[name].median_seconds, now[name].median_seconds
            is_sane = was > 0 and is_now / was < _MOST_RATIO
            ratio = f"its median is {is_now / was:.3f} times that of BASE, but " if is_sane else ""
            yield _row(
                name,
                GateVerdict.NOT_COMPARABLE,
                f"Not comparable: {ratio}each was timed alone, at two moments of a noisy machine.",
            )


def _row(name: str, verdict: GateVerdict, evidence: str) -> GateRecord:
    return GateRecord(gate=Gate.TIME, word=verdict, case=name, evidence=evidence)
