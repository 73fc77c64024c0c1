"""Suites small enough to run in a test, and records to fill a store with."""

from pathlib import Path

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Record, TimingRecord
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.sweep.suite import Suite, load_suite

# Two cases, eight jobs: two exports, then twice two agreements and one timing.
TINY = """\
name = "tiny"
opsets = [23]
agreement = ["ort-cpu", "torch"]
timing = ["ort-cpu", "torch"]
baseline = "torch"
spreads = [1.0]
probes = false

[measure]
launches = 1
blocks = 12
budget_seconds = 0.3
visit_seconds = 0.001
warm_up_seconds = 0.05

[base]
q_seq_len = 16
q_num_heads = 2
head_dim = 8

[[vary]]
targets = ["sdpa"]
is_causal = [false, true]
"""

FULL_DISK_HINT = "Free some space and repeat the command; `run` continues with --resume."

HEADER = RunHeader(suite="t", started="2026-11-29T00:00:00+00:00", command="sdpa-onnx run t", planned_cells=3)


def write_suite(folder: Path, text: str = TINY, name: str = "tiny.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def suite_of(folder: Path, text: str = TINY) -> Suite:
    return load_suite(str(write_suite(folder, text)))


def job_records(job: str, *, parts: int = 1, outcome: Outcome = Outcome.OK, reason: str = "") -> list[Record]:
    """Records of one finished job: an agreement, then timings."""
    made: list[Record] = []
    for number in range(parts):
        kind = TimingRecord if number else AgreementRecord
        made.append(kind(job=job, parts=parts, cell=f"{job}-{number}", outcome=outcome, reason=reason))
    return made
