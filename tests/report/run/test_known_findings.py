"""The sentences on known findings, compared in full."""

import pytest

from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Record
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.report.run.known_findings import known_details, new_lines
from sdpa_onnx.report.text.known_summary import known_summary
from sdpa_onnx.workflows.expected.known_findings import KnownFinding, KnownFindings, SortedFindings
from tests.report.synthetic import tell
from tests.report.synthetic_conformance import row

_WRONG = row(Conformity.WRONG, diagnosis="Off by\n one.")
_RIGHT = row(feature="causal-square")


def found(records: list[Record], *fields: dict[str, str | int | float | bool]) -> SortedFindings:
    """The records sorted by entries with these fields."""
    entries = [KnownFinding(fields=one, why="see there", place=f"k.toml, entry {n}") for n, one in enumerate(fields, 1)]
    return KnownFindings(entries=tuple(entries)).sort(records)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ([], "Compared with the known findings: 1 new, 0 known, 0 vanished."),
        ([{"feature": "plain"}, {"opset": 23}], "Compared with the known findings: 0 new, 1 known, 0 vanished."),
        ([{"feature": "causal-square"}], "Compared with the known findings: 1 new, 0 known, 1 vanished."),
        ([{"verdict": "crashed"}], "Compared with the known findings: 1 new, 0 known, 0 vanished, 1 changed."),
        ([{"feature": "other"}], "Compared with the known findings: 1 new, 0 known, 0 vanished, 1 unused."),
    ],
)
def test_summary(fields: list[dict[str, str | int | float | bool]], sentence: str) -> None:
    """Every sort is counted; a finding that two entries list counts once."""
    assert known_summary(found([_WRONG, _RIGHT], *fields)) == sentence


def test_details() -> None:
    """An entry that is out of date is reported with file, entry, fields and reason."""
    fields: list[dict[str, str | int | float | bool]] = [
        {"kind": "conformance", "feature": "causal-*", "verdict": "wrong"},
        {"kind": "conformance", "runtime": "ort-cpu", "opset": 24},
        {"kind": "conformance", "feature": "plain", "verdict": "crashed"},
        {"kind": "conformance", "feature": "gone"},
    ]
    assert known_details(found([_WRONG, _RIGHT, row(opset=24), row(opset=24, dtype="float16")], *fields)) == [
        "vanished: k.toml, entry 1 (feature causal-*, verdict wrong; see there): its row is ok now. Remove the entry.",
        "vanished: k.toml, entry 2 (runtime ort-cpu, opset 24; see there): its 2 rows are ok now. Remove the entry.",
        "changed: k.toml, entry 3 (feature plain, verdict crashed; see there): the finding is now another one.",
        "unused: k.toml, entry 4 (feature gone; see there): not all of its rows ran.",
    ]


def test_a_larger_finding_than_an_entry_allows() -> None:
    """It is new, and both lines have the allowed value."""
    entry = KnownFinding(
        fields={"kind": "gate", "gate": "agreement"}, why="see there", place="k.toml, entry 1", at_most=4.0
    )
    worse = GateRecord(case="m.onnx", outcome=Outcome.DISAGREES, reason="Off.", amount=17.0)
    sorted_ = KnownFindings(entries=(entry,)).sort([worse])
    assert new_lines(sorted_) == [
        "new: agreement, m.onnx: Off. It is worse than the entry allows (k.toml, entry 1: at most 4)."
    ]
    words = "the finding is now worse than the entry allows (at most 4)."
    assert known_details(sorted_) == [f"changed: k.toml, entry 1 (gate agreement; see there): {words}"]


def test_a_new_finding_of_a_comparison_names_its_gate() -> None:
    """Two gates may speak of the same case."""
    worse = GateRecord(
        gate=Gate.TIME, runtime="ort-cpu", case="m.onnx", outcome=Outcome.DISAGREES, evidence="Slow.", reason="Slow."
    )
    assert new_lines(found([worse])) == ["new: time, ort-cpu, m.onnx: Slow."]


def test_many_entries_without_a_row_are_counted() -> None:
    """A run of a few features does not list the whole file."""
    fields: list[dict[str, str | int | float | bool]] = [{"feature": f"gone-{number}"} for number in range(4)]
    assert known_details(found([_RIGHT], *fields)) == ["unused: 4 entries: not all of their rows ran."]
    assert len(known_details(found([_RIGHT], *fields[:3]))) == 3


def test_new_findings_are_told_one_by_one() -> None:
    """Each with where and what, of any kind; after ten they are counted."""
    check = AgreementRecord(target="m.onnx", runtime="torch", outcome=Outcome.FAILED, reason="no kernel")
    assert new_lines(found([_WRONG, check])) == [
        "new: ort-cpu Attention 23 float32 plain: wrong. Off by one.",
        "new: m.onnx, torch: no kernel",
    ]
    many: list[Record] = [row(Conformity.CRASHED, opset=number) for number in range(13)]
    assert len(new_lines(found(many))) == 11
    assert new_lines(found(many))[-1] == "new: 3 more."
    assert len(new_lines(found(many[:10]))) == 10


def test_second_line_of_a_run() -> None:
    """With a file of known findings the second sentence compares the run with it; without one there is none."""
    check = AgreementRecord(target="m.onnx", runtime="torch", outcome=Outcome.FAILED, reason="no kernel")
    with_file = tell([check], known=found([check]))
    assert with_file[1] == "Compared with the known findings: 1 new, 0 known, 0 vanished."
    assert [with_file[0], *with_file[2:]] == tell([check])
