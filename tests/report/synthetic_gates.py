"""Comparisons made up: every verdict, and names that would act if they were not text."""

import msgspec

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gates import compare_paired
from sdpa_onnx.core.records.gate_records import GateRecord
from sdpa_onnx.core.records.records import Record
from sdpa_onnx.core.records.verdicts import Outcome, RatioVerdict, Verdict
from sdpa_onnx.report.compare.gate_report import GateReport
from sdpa_onnx.workflows.expected.known_findings import KnownFinding, KnownFindings
from tests.core.gate_problems import agreed, beside, timed

HOSTILE = (
    "a|b`c`<script>alert(1)</script>\n## head *x* _y_ [l](javascript:1) @all #12 a/b#12 \x00\x1b[31m ]]> & "
    "\N{PILE OF POO}"
)


def report(rows: list[GateRecord], *known: KnownFinding) -> GateReport:
    return GateReport(
        rows=rows,
        base="base/model.onnx",
        head="head/model.onnx",
        how="Both were judged, and timed interleaved on one machine.",
        command="sdpa-onnx compare base/model.onnx head/model.onnx",
        known=KnownFindings(entries=known).sort(rows) if known else None,
    )


def mixed(**limits: object) -> list[GateRecord]:
    """A comparison with every verdict."""
    base: list[Record] = [agreed(inputs=f"spread {n}") for n in (1, 4, 16)] + [agreed(inputs="gone"), timed(case="old")]
    head: list[Record] = [
        agreed(inputs="spread 1"),
        agreed(inputs="spread 4", verdict=Verdict.WRONG, outcome=Outcome.DISAGREES, diagnosis="Off by one."),
        agreed(inputs="spread 16", verdict=Verdict.ROUNDING_LEVEL),
        agreed(inputs="new"),
        timed(case="old", ran={"Attention": 9}, peak_memory_bytes=150 * 2**20),
    ]
    pairs = [beside(1.12), beside(1.04), beside(1.02), beside(0.9), beside(1.3, verdict=RatioVerdict.NOISY)]
    return compare_paired(base, head, pairs, GateLimits(**limits))


def hostile() -> GateReport:
    rows = [
        msgspec.structs.replace(row, case=HOSTILE, target=HOSTILE, evidence=f"{row.evidence} {HOSTILE}")
        for row in mixed()
    ]
    return GateReport(rows=rows, base=HOSTILE, head="``", how="x", command=f"sdpa-onnx compare '{HOSTILE}' ```")
