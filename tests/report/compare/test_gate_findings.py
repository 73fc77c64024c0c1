"""Failing rows of a comparison by cause: what got worse, and by how much."""

import msgspec
import pytest

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gates import compare_paired
from sdpa_onnx.core.records.cause_text import looks_like
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.verdicts import Outcome, Verdict
from sdpa_onnx.report.compare.gate_findings import gate_findings
from tests.core.gate_problems import agreed


def _row(gate: Gate, **fields: object) -> GateRecord:
    return GateRecord(gate=gate, word=GateVerdict.REGRESSION, outcome=Outcome.DISAGREES, runtime="ort-cpu", **fields)


def _sentences(*rows: GateRecord) -> list[str]:
    return [finding.sentence for finding in gate_findings(rows)]


def test_a_wrong_scale_is_one_sentence() -> None:
    """Thirteen checks of one fault, on two runtimes: the fault, where, and how it was before."""
    bad = {
        "verdict": Verdict.WRONG,
        "outcome": Outcome.DISAGREES,
        "max_bound_ratio": 9.0,
        "diagnosis": f"8 of 8 exceed it, at worst 9 times at (0, 0). {looks_like('the scale is off by 1.8 %')}",
    }
    base = [agreed(inputs=f"spread {n}") for n in range(12)] + [agreed(runtime="onnx-reference")]
    head = [msgspec.structs.replace(one, **bad) for one in base]
    rows = [row for row in compare_paired(base, head, [], GateLimits()) if row.fails]
    (finding,) = gate_findings(rows)
    assert finding.sentence == (
        "The scale is off by 1.8 %: wrong on onnx-reference and ort-cpu in 13 checks, ok before."
    )
    assert len(finding.rows) == len(rows) == 13


@pytest.mark.parametrize(
    ("ratios", "sentence"),
    [
        ((1.12,), "ort-cpu is 12 % slower (allowed: 5 %)."),
        ((1.08, 1.31), "ort-cpu is 8 to 31 % slower in 2 cases (allowed: 5 %)."),
        ((1.2, 1.2), "ort-cpu is 20 % slower in 2 cases (allowed: 5 %)."),
    ],
)
def test_time(ratios: tuple[float, ...], sentence: str) -> None:
    """The slow-down of an arm over its cases."""
    assert _sentences(*(_row(Gate.TIME, ratio=one, margin=0.05) for one in ratios)) == [sentence]


def test_memory_and_graph() -> None:
    """The worst value, and the first sentence of the evidence."""
    memory = [_row(Gate.MEMORY, base="10.0 MiB", head=f"{n} MiB", base_bytes=10, head_bytes=n) for n in (15, 30)]
    graph = _row(Gate.GRAPH, arm="ort-cpu attention 23", evidence="Attention is newly expanded. More.")
    assert _sentences(*memory, graph) == [
        "ort-cpu attention 23: Attention is newly expanded.",
        "ort-cpu needs more memory in 2 cases, at worst: 30 MiB, before 10.0 MiB.",
    ]


def test_undecided_rows_that_must_be_decided() -> None:
    """With --strict an open row fails; rows that differ in figures only are one finding."""
    texts = [f"HEAD takes {1 + n} times as long. Open." for n in range(3)]
    rows = [
        msgspec.structs.replace(_row(Gate.TIME, ratio=1.0, evidence=text), word=GateVerdict.UNDECIDED) for text in texts
    ]
    assert _sentences(*rows) == ["ort-cpu in 3 cases: HEAD takes 1 times as long."]


def test_every_failing_row_is_in_one_finding() -> None:
    """None is lost, none is counted twice."""
    rows = [
        _row(gate, evidence=f"{gate} {n}.", ratio=1.1 if gate is Gate.TIME and n else None)
        for gate in Gate
        for n in range(3)
    ]
    found = [id(row) for finding in gate_findings(rows) for row in finding.rows]
    assert sorted(found) == sorted(map(id, rows))
