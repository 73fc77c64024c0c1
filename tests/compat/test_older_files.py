"""Files that version 0.1.0.dev0 wrote before a judgement had a subject and a spec: they are read as they were meant.

The records are lines of its `--json`, the run is a whole one without its models and samples, and the JUnit file is what
its `compare` said of that run and a copy with one output made suspicious.
"""

import json
import shutil
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from sdpa_onnx.core.attention.spec import parse_case_id
from sdpa_onnx.core.records.earlier_schema import earlier_number
from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ExportRecord,
    LocatedRecord,
    Outcome,
    Record,
    Subject,
    TimingRecord,
    decode_record,
    encode_record,
)
from sdpa_onnx.report.compare.gate_report import place
from sdpa_onnx.sweep.store import read_run
from sdpa_onnx.workflows.expected.known_findings import read_expected
from tests.cli.invoke import Shell
from tests.core.record_figures import figures_of

_HERE = Path(__file__).parent
_FILES = sorted((_HERE / "records").glob("*.json"))
_RUN = _HERE / "run"
_JUNIT = _HERE / "junit" / "runs-worse.xml"


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def _records(name: str) -> list[Record]:
    lines = _lines(_HERE / "records" / f"{name}.json")
    return [decode_record(line, where=f"{name}:{number}") for number, line in enumerate(lines, 1)]


@pytest.mark.parametrize("path", _FILES, ids=[path.stem for path in _FILES])
def test_records_are_read(path: Path) -> None:
    """Every field keeps its value but for the prefix of a site, and a number that meant "unknown", which is None."""
    for line in _lines(path):
        record = decode_record(line, where=path.name)
        before, now = json.loads(line), json.loads(encode_record(record))
        for field, value in before.items():
            expected = value.partition(":")[2] if field == "site" and ":" in value else value
            if field == "schema":
                assert (value, now[field]) == (1, 2)
            elif field == "sizes":
                assert now[field] == {name: None if size == -1 else size for name, size in value.items()}
            elif now[field] is None and value is not None:
                assert value in earlier_number(before["kind"], field), field
            else:
                assert now[field] == expected, field
        assert decode_record(encode_record(record), where="again") == record


def test_a_placeholder_of_a_failure_is_none() -> None:
    """No number of a line that failed is read as a figure; what was measured keeps its numbers."""
    for path in _FILES:
        for line, record in zip(_lines(path), _records(path.stem), strict=True):
            if record.outcome in (Outcome.FAILED, Outcome.UNSUPPORTED, Outcome.SKIPPED):
                assert figures_of(record) == {}, line
            if isinstance(record, TimingRecord) and record.outcome is Outcome.OK:
                assert (record.median_seconds or 0.0) > 0.0
                assert record.ratio == json.loads(line)["ratio"]


def test_every_kind_was_read() -> None:
    """None is missing from the files."""
    kinds = {json.loads(line)["kind"] for path in _FILES for line in _lines(path)}
    assert kinds == {kind.__struct_config__.tag for kind in get_args(Record)}


@pytest.mark.parametrize(
    ("name", "subjects"),
    [
        ("verify", {Subject.ATTENTION: {"sdpa"}}),
        ("verify-end-wrong", {Subject.ATTENTION: {"sdpa"}, Subject.OUTPUT: {"output_0", "output_1"}}),
        ("convert", {Subject.ATTENTION: {"sdpa"}, Subject.OUTPUT: {"Y"}, Subject.READING: {"sdpa"}}),
        ("fuzz", {Subject.ATTENTION: {"Y", ""}}),
    ],
)
def test_what_was_judged(name: str, subjects: dict[Subject, set[str]]) -> None:
    """Outputs and readings by their names alone."""
    found: dict[Subject, set[str]] = {}
    for record in _records(name):
        if isinstance(record, AgreementRecord | LocatedRecord):
            found.setdefault(record.subject, set()).add(record.site)
    assert found == subjects


def test_specs_come_from_case_ids() -> None:
    """Of each case that is one attention, and of no other."""
    records = [record for path in _FILES for record in _records(path.stem)]
    of_cases = [one for one in records if isinstance(one, AgreementRecord | TimingRecord | GateRecord)]
    specs = {one.case: one.spec for one in of_cases}
    assert any(specs.values())
    assert not all(specs.values())
    for case, spec in specs.items():
        read = parse_case_id(case)
        assert spec == (None if read is None else read.spec)


@pytest.mark.parametrize(
    ("known", "name"),
    [
        ("verify.toml", "verify-wrong-scale"),
        ("verify.json", "verify-wrong-scale"),
        ("verify-end.toml", "verify-end-wrong"),
        ("conformance.toml", "conformance"),
        ("fuzz.toml", "fuzz"),
    ],
)
def test_known_findings_are_found(known: str, name: str) -> None:
    """Nothing is new, and every entry has a finding."""
    expected = read_expected(_HERE / "known" / known)
    found = expected.sort(_records(name))
    assert found.new == ()
    assert len(found.known) == len(expected.entries) > 0


def test_known_findings_of_a_comparison_are_found() -> None:
    """An entry of "end:output_0" is one of the output, not of an attention of that name."""
    rows = [row for row in _records("compare") if isinstance(row, GateRecord) and row.gate is Gate.AGREEMENT]
    expected = read_expected(_HERE / "known" / "compare.toml")
    assert expected.sort(rows).new == ()
    (bad, *_) = [row for row in rows if row.fails]
    assert (bad.subject, bad.site) == (Subject.OUTPUT, "output_0")
    assert "output 'output_0'" in place(bad)
    attention = msgspec.structs.replace(bad, subject=Subject.ATTENTION)
    assert expected.sort([attention]).new == (attention,)


def test_a_stored_run_is_read() -> None:
    """All of its records and its header."""
    header, records = read_run(_RUN)
    assert header.is_finished
    assert Counter(type(record) for record in records if isinstance(record, AgreementRecord | ExportRecord)) == {
        AgreementRecord: sum(b'"kind":"agreement"' in line for line in _lines(_RUN / "records.jsonl")),
        ExportRecord: sum(b'"kind":"export"' in line for line in _lines(_RUN / "records.jsonl")),
    }
    outputs = [one for one in records if isinstance(one, AgreementRecord) and one.subject is Subject.OUTPUT]
    assert {one.site for one in outputs} == {"output"}


def _worse_run(folder: Path) -> Path:
    """A copy in which the first check of an output is suspicious."""
    shutil.copytree(_RUN, folder)
    lines = [json.loads(line) for line in _lines(folder / "records.jsonl")]
    bad = next(one for one in lines if one.get("site") == "end:output")
    bad |= {"outcome": "disagrees", "verdict": "suspicious", "max_bound_ratio": 2.5, "reason": "changed by hand"}
    text = "".join(f"{json.dumps(one, sort_keys=True, separators=(',', ':'))}\n" for one in lines)
    (folder / "records.jsonl").write_text(text, encoding="utf-8")
    return folder


def _cases(path: Path) -> list[tuple[str | None, str | None, list[str]]]:
    cases = ET.parse(path).iter("testcase")  # noqa: S314 - our own file
    return [
        (case.get("classname"), case.get("name"), [one.tag for one in case if one.tag != "system-out"])
        for case in cases
    ]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """A shell in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Shell(folder=tmp_path, capture=capfd)


def test_junit_names_stay(shell: Shell) -> None:
    """A system that follows tests by their names sees the same ones, and the same of them fail."""
    _worse_run(shell.folder / "run-head")
    shutil.copytree(_RUN, shell.folder / "run-base")
    ended = shell("compare", "run-base", "run-head", "--junit", "now.xml")
    assert ended.code == 1
    assert _cases(shell.folder / "now.xml") == _cases(_JUNIT)
