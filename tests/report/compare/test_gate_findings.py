"""Failing rows of a comparison by cause: what got worse, and by how much."""

import msgspec
import pytest

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gates import compare_paired
from sdpa_onnx.core.records.cause_text import looks_like
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import Subject
from sdpa_onnx.core.records.verdicts import Outcome, Verdict
from sdpa_onnx.report.compare.gate_findings import gate_findings
from sdpa_onnx.report.compare.gate_report import changed_table
from sdpa_onnx.report.compare.terminal import gate_lines
from tests.core.gate_problems import agreed
from tests.report.synthetic_gates import report


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


def _output(diagnosis: str) -> list[GateRecord]:
    """One output that was right and is far from it now; nothing is proven of an output."""
    was = agreed(subject=Subject.OUTPUT, site="Y")
    bad = {"verdict": Verdict.SUSPICIOUS, "outcome": Outcome.DISAGREES, "max_bound_ratio": 12700.0}
    now = msgspec.structs.replace(was, diagnosis=diagnosis, **bad)
    return compare_paired([was], [now], [], GateLimits())


@pytest.mark.parametrize(
    ("diagnosis", "sentence"),
    [
        (
            "At batch_size 1: The largest error is 0.1; the source's own in the same type is 1e-7.",
            "Output 'Y' differs by up to 12,700 times the allowed error on ort-cpu, ok before.",
        ),
        (
            "The attention was causal and no longer is. At batch_size 1: The largest error is 0.1.",
            "The attention was causal and no longer is: differs on ort-cpu, ok before.",
        ),
    ],
)
def test_an_output_without_a_proven_bound_differs_everywhere(diagnosis: str, sentence: str) -> None:
    """The first sentence, the table and the evidence have the same word for it; records keep the verdict."""
    (row,) = _output(diagnosis)
    assert (row.head, row.base) == ("suspicious", "ok")
    assert _sentences(row) == [sentence]
    assert row.evidence == f"differs, ok before: {diagnosis}"
    found = report([row])
    (cells,) = changed_table(found, most=5).sections[0].rows  # type: ignore[union-attr]
    assert cells[3:5] == ("ok", "differs")
    assert "suspicious" not in "\n".join(line.text for line in gate_lines(found, 80))


def test_evidence_of_earlier_versions_is_read() -> None:
    """The verdicts in front of the evidence are no part of the cause, in either order."""
    (row,) = _output("The attention was causal and no longer is.")
    old = msgspec.structs.replace(row, evidence=row.evidence.replace("differs, ok before", "suspicious, before ok"))
    assert _sentences(old) == _sentences(row)


def test_rows_of_two_models_read_alike() -> None:
    """What all rows share is stated once, in the rows of memory and of the graph too; no row repeats file names."""
    both = {"target": "h.onnx", "case": "h.onnx_b2_q13_kv13", "axes": {"batch": 2, "length": 13}}
    rows = [
        _row(
            Gate.AGREEMENT, subject=Subject.ATTENTION, site="sdpa", inputs="spread 1", base="ok", head="wrong", **both
        ),
        _row(Gate.MEMORY, base="1.0 MiB", head="30.0 MiB", base_bytes=1, head_bytes=30, **both),
        _row(Gate.GRAPH, base="10 nodes run", head="12 nodes run", target="h.onnx"),
    ]
    found = report([msgspec.structs.replace(row, evidence=f"{row.gate}.") for row in rows])
    table = changed_table(found, most=5)
    assert table is not None
    assert {row[0]: row[2] for row in table.sections[0].rows} == {
        "agreement": "sdpa, batch 2, length 13, spread 1",
        "memory": "batch 2, length 13",
        "graph": "the model",
    }
    assert table.note.startswith("All of h.onnx, on ort-cpu")


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
