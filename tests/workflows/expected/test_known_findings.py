"""Known findings: the fields of an entry, and how the records of a run are sorted by it."""

import json
from pathlib import Path

import msgspec
import pytest

from sdpa_onnx.core.records.gate_records import GateVerdict
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ConformanceRecord,
    Conformity,
    ExportRecord,
    GateRecord,
    Outcome,
    Record,
    Subject,
    Verdict,
)
from sdpa_onnx.errors import PlanError
from sdpa_onnx.workflows.expected.known_findings import KnownFindings, SortedFindings, is_bad, read_expected
from sdpa_onnx.workflows.expected.write_file import write_known


def row(verdict: Conformity | None = Conformity.WRONG, **fields: object) -> ConformanceRecord:
    """A row of one feature, with fields replaced."""
    usual: dict[str, object] = {"runtime": "ort-cpu", "feature": "causal-past-one-query", "operator": "Attention"}
    usual |= {"opset": 23, "dtype": "float32", "verdict": verdict}
    usual |= {"outcome": Outcome.SKIPPED if verdict is None else verdict.outcome}
    return ConformanceRecord(**(usual | fields))  # type: ignore[arg-type]


def known(tmp_path: Path, *entries: str) -> KnownFindings:
    """The entries as read from a TOML file, each with its kind and why."""
    path = tmp_path / "known.toml"
    tables = [f'[[known]]\nkind = "conformance"\nwhy = "seen"\n{entry}\n' for entry in entries]
    path.write_text("\n".join(tables), encoding="utf-8")
    return read_expected(path)


def counts(found: SortedFindings) -> dict[str, int]:
    """Number of findings of each sort; empty sorts are omitted."""
    return {name: len(group) for name in SortedFindings.__slots__ if (group := getattr(found, name))}


@pytest.mark.parametrize(
    ("entry", "other"),
    [
        ('feature = "causal-past-one-query"', 'feature = "causal-past-one-quer"'),
        ('feature = "causal-*"', 'feature = "causal-*-queries"'),
        ('feature = "*query"', 'feature = "*past"'),
        ('operator = "Attention"', 'operator = "attention"'),
        ("opset = 23", "opset = 24"),
        ('verdict = "wrong"', 'verdict = "crashed"'),
        ('outcome = "disagrees"', 'outcome = "failed"'),
        ("max_abs_error = 0.5", "max_abs_error = 0.25"),
        ('observed = "upper-left [0, 1]"', 'observed = "upper-left [01]"'),
        ('diagnosis = "two*lines"', 'diagnosis = "two?lines"'),
    ],
)
def test_each_field_must_be_equal(tmp_path: Path, entry: str, other: str) -> None:
    """An entry that just matches covers the row, its neighbour does not."""
    record = row(max_abs_error=0.5, observed="upper-left [0, 1]", diagnosis="two\nlines")
    assert counts(known(tmp_path, entry).sort([record])) == {"known": 1}
    assert known(tmp_path, other).sort([record]).new == (record,)


def test_all_given_fields_must_be_equal(tmp_path: Path) -> None:
    """An entry with one equal and one different field does not match."""
    entry = 'feature = "causal-past-one-query"\nopset = 24'
    assert known(tmp_path, entry).sort([row()]).new == (row(),)


@pytest.mark.parametrize(
    ("verdict", "bad"),
    [
        *((Conformity.RIGHT, False), (Conformity.WRONG, True), (Conformity.SUSPICIOUS, True)),
        *((Conformity.REFUSED, True), (Conformity.CRASHED, True)),
    ],
)
def test_what_needs_an_entry(verdict: Conformity, bad: bool) -> None:
    """A refused feature of an operator is bad when known findings are used."""
    assert is_bad(row(verdict)) == bad
    assert counts(KnownFindings().sort([row(verdict)])) == ({"new": 1} if bad else {})


def test_refused_and_skipped_checks_are_not_bad() -> None:
    """A model that a runtime does not support, and a row that did not run, are no findings."""
    assert not is_bad(AgreementRecord(outcome=Outcome.UNSUPPORTED))
    assert not is_bad(row(None))
    assert is_bad(AgreementRecord(outcome=Outcome.DISAGREES))
    assert is_bad(ExportRecord(outcome=Outcome.FAILED))


@pytest.mark.parametrize(
    ("rows", "sorts"),
    [
        ([Conformity.RIGHT, Conformity.RIGHT], {"vanished": 1}),
        ([Conformity.RIGHT, Conformity.WRONG], {"known": 1}),
        ([Conformity.RIGHT, Conformity.CRASHED], {"new": 1, "changed": 1}),
        ([Conformity.RIGHT, None], {"unused": 1}),
        ([None, None], {"unused": 1}),
        ([], {"unused": 1}),
    ],
    ids=["all-well", "one-left", "bad-in-another-way", "one-did-not-run", "none-ran", "no-rows"],
)
def test_what_has_vanished(tmp_path: Path, rows: list[Conformity | None], sorts: dict[str, int]) -> None:
    """An entry has vanished only if every row that it names ran and is OK."""
    records = [row(verdict, opset=23 + number) for number, verdict in enumerate(rows)]
    other = row(Conformity.RIGHT, feature="softcap")
    assert counts(known(tmp_path, 'feature = "causal-*"\nverdict = "wrong"').sort([*records, other])) == sorts


@pytest.mark.parametrize(
    ("entry", "verdict", "sorts"),
    [
        ("wrong", Conformity.SUSPICIOUS, {"known": 1}),
        ("wrong", Conformity.WRONG, {"known": 1}),
        ("wrong", Conformity.RIGHT, {"vanished": 1}),
        ("suspicious", Conformity.SUSPICIOUS, {"known": 1}),
        ("suspicious", Conformity.WRONG, {"new": 1, "changed": 1}),
        ("crashed", Conformity.SUSPICIOUS, {"new": 1, "changed": 1}),
    ],
)
def test_wrong_entries_of_earlier_versions_cover_suspicious_features(
    tmp_path: Path, entry: str, verdict: Conformity, sorts: dict[str, int]
) -> None:
    """Earlier versions called a suspicious feature wrong; an entry "suspicious" never excuses a proved fault."""
    assert counts(known(tmp_path, f'feature = "causal-*"\nverdict = "{entry}"').sort([row(verdict)])) == sorts


def test_two_entries_of_one_finding(tmp_path: Path) -> None:
    """A finding is known to each entry that matches, and neither has vanished."""
    found = known(tmp_path, "opset = 23", 'runtime = "ort-*"').sort([row()])
    assert counts(found) == {"known": 2}
    assert [entry.place.rpartition(" ")[2] for entry, _ in found.known] == ["1", "2"]


def test_other_kinds(tmp_path: Path) -> None:
    """The same file covers a check of `verify` and a proof of its axes, and nothing of another kind."""
    path = tmp_path / "known.json"
    check = AgreementRecord(runtime="torch", outcome=Outcome.DISAGREES, verdict=Verdict.WRONG, spread=8.0)
    proof = ExportRecord(target="m.onnx", outcome=Outcome.DISAGREES)
    entries = [
        {"kind": "agreement", "verdict": "wrong", "spread": 8, "why": "seen"},
        {"kind": "export", "target": "*.onnx", "why": "seen"},
    ]
    path.write_text(json.dumps({"known": entries}))
    records: list[Record] = [check, proof, row()]
    found = read_expected(path).sort(records)
    assert found.new == (row(),)
    assert [rows for _, rows in found.known] == [(check,), (proof,)]


_FIELDS_WHY = 'kind = "conformance"\nwhy = "seen"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            f'[[known]]\n{_FIELDS_WHY}opset = 23\n[[known]]\n{_FIELDS_WHY}featur = "x"',
            "known.toml, entry 2: unknown field 'featur' of kind 'conformance'. Did you mean 'feature'?",
        ),
        (
            f'[[known]]\n{_FIELDS_WHY}warnings = "x"',
            (
                "known.toml, entry 1: unknown field 'warnings' of kind 'conformance'. Allowed: schema, cell, job, "
                "parts, case, target, form, opset, runtime, outcome, reason, feature, group, title, operator, dtype, "
                "verdict, path, path_nodes, observed, reading, diagnosis, max_abs_error, max_bound_ratio, cases, "
                "wrong_cases, repeat."
            ),
        ),
        (
            '[[known]]\nkind = "conformanc"\nwhy = "seen"\nopset = 23',
            "known.toml, entry 1: unknown kind 'conformanc'. Did you mean 'conformance'?",
        ),
        (
            '[[known]]\nwhy = "seen"\nopset = 23',
            (
                "known.toml, entry 1: 'kind' is missing. Allowed: agreement, timing, export, saturation, conformance, "
                "planted, located, attention, runtime, form, gate."
            ),
        ),
        (
            '[[known]]\nkind = "conformance"\nwhy = " "\nopset = 23',
            "known.toml, entry 1: 'why' is missing. State why this is known: a link or a sentence.",
        ),
        (
            f"[[known]]\n{_FIELDS_WHY}",
            (
                "known.toml, entry 1: it has no field but kind and why, so it would match every finding. "
                "Add at least one, such as runtime."
            ),
        ),
        (
            f'[[known]]\n{_FIELDS_WHY}verdict = "wrnog"',
            "known.toml, entry 1: 'verdict' is never 'wrnog'. Did you mean 'wrong'?",
        ),
        (
            f'[[known]]\n{_FIELDS_WHY}verdict = "disagrees"',
            (
                "known.toml, entry 1: 'verdict' is never 'disagrees'. Allowed: right, wrong, suspicious, "
                "refused, crashed, no-answer."
            ),
        ),
        (
            f'[[known]]\n{_FIELDS_WHY}opset = "23"',
            "known.toml, entry 1: 'opset' is '23'; it must be a whole number.",
        ),
        (f"[[known]]\n{_FIELDS_WHY}opset = true", "known.toml, entry 1: 'opset' is True; it must be a whole number."),
        (f"[[known]]\n{_FIELDS_WHY}runtime = 1", "known.toml, entry 1: 'runtime' is 1; it must be text."),
        ("[known]\nopset = 23", "Known findings known.toml are not a list of entries. Each starts with [[known]]."),
        ("[[know]]\nopset = 23", "Known findings known.toml are not a list of entries. Each starts with [[known]]."),
        ("known = [1]", "known.toml, entry 1: this is no table of fields. Each starts with [[known]]."),
        ("[[known", "Known findings known.toml cannot be read: Expected "),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str) -> None:
    """The error of each mistake names file, entry and the allowed values."""
    monkeypatch.chdir(tmp_path)
    Path("known.toml").write_text(text)
    with pytest.raises(PlanError) as caught:
        read_expected(Path("known.toml"))
    assert str(caught.value) == sentence if sentence.endswith((".", "?")) else str(caught.value).startswith(sentence)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file and a binary file are errors of one sentence."""
    monkeypatch.chdir(tmp_path)
    Path("noise.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError) as missing:
        read_expected(Path("gone.toml"))
    assert str(missing.value) == "Cannot read known findings gone.toml: No such file or directory."
    with pytest.raises(PlanError) as noise:
        read_expected(Path("noise.toml"))
    assert str(noise.value) == "Known findings noise.toml are not a text file."


def test_a_file_without_entries_knows_nothing(tmp_path: Path) -> None:
    """The file that `--write-expected` writes for a run without findings can be read."""
    assert known(tmp_path) == KnownFindings()


def test_written_findings_are_all_known(tmp_path: Path) -> None:
    """The written file covers every bad row, in a fixed order, and no row of another verdict."""
    rows = [
        row(Conformity.WRONG, diagnosis='"quoted" \\ back\x7f\x00 and\nnext \ud800', observed="upper-left"),
        row(Conformity.REFUSED, feature="bf16", reason="no kernel"),
        row(Conformity.CRASHED, opset=24),
        row(Conformity.RIGHT, opset=25),
    ]
    path = tmp_path / "known.toml"
    path.write_text(write_known(rows, known=KnownFindings()), encoding="utf-8")
    assert write_known(rows[::-1], known=KnownFindings()) == path.read_text(encoding="utf-8")
    read = read_expected(path)
    assert counts(read.sort(rows)) == {"known": 3}
    assert [entry.why for entry in read.entries] == [
        "no kernel",
        '"quoted" \\ back\x7f\x00 and next ?',
        "No reason was recorded.",
    ]
    worse = msgspec.structs.replace(rows[0], verdict=Conformity.CRASHED, outcome=Outcome.FAILED)
    assert counts(read.sort([worse])) == {"new": 1, "changed": 1, "unused": 2}


def test_renewed_findings_keep_their_why(tmp_path: Path) -> None:
    """A reason written by a user is kept; a new entry gets the diagnosis."""
    entries = known(tmp_path, 'feature = "causal-*"')
    text = write_known([row(diagnosis="off"), row(feature="bf16", diagnosis="new")], known=entries)
    assert [line for line in text.splitlines() if line.startswith("why")] == ['why = "new"', 'why = "seen"']


def test_text_of_the_file(tmp_path: Path) -> None:
    """One complete entry, as a user will edit it."""
    assert write_known([row(observed="zero", diagnosis="A row is zero.")], known=KnownFindings()).splitlines() == [
        (
            "# Known findings: a finding listed here does not fail `--expect`, any other does, and vanished ones are "
            "reported."
        ),
        "# Every field but `why` must be equal; `*` in a text matches any text. A finding above `at_most` is new.",
        "",
        "[[known]]",
        'kind = "conformance"',
        'runtime = "ort-cpu"',
        'operator = "Attention"',
        'feature = "causal-past-one-query"',
        "opset = 23",
        'dtype = "float32"',
        'verdict = "wrong"',
        'observed = "zero"',
        'why = "A row is zero."',
    ]


@pytest.mark.parametrize(("kind", "shown"), [("['a']", "['a']"), ("{a = 1}", "{'a': 1}"), ("3", "3")])
def test_kind_that_is_no_text(tmp_path: Path, kind: str, shown: str) -> None:
    """A list or a table instead is an error with the allowed values."""
    path = tmp_path / "k.toml"
    path.write_text(f"[[known]]\nkind = {kind}\n")
    with pytest.raises(PlanError) as caught:
        read_expected(path)
    assert str(caught.value).startswith(f"{path}, entry 1: 'kind' is {shown}; it must be text. Allowed: ")


@pytest.mark.parametrize("name", ["k.json", "k.toml"])
def test_nested_too_deeply(tmp_path: Path, name: str) -> None:
    """Five thousand brackets are an error of one sentence."""
    path = tmp_path / name
    deep = "[" * 5000 + "]" * 5000
    path.write_text(deep if path.suffix == ".json" else f"known = {deep}\n")
    with pytest.raises(PlanError) as caught:
        read_expected(path)
    assert str(caught.value) == f"Known findings {path} cannot be read: they are nested too deeply."


@pytest.mark.parametrize(
    ("entry", "subjects"),
    [
        ('site = "Y"', {Subject.ATTENTION}),
        ('site = "end:Y"', {Subject.OUTPUT}),
        ('site = "read:Y"', {Subject.READING}),
        ('site = "*"', set(Subject)),
        ('site = "end:*"', {Subject.OUTPUT}),
        ('site = "Y"\nsubject = "output"', {Subject.OUTPUT}),
        ('site = "*"\nsubject = "attention"', {Subject.ATTENTION}),
        ('site = "end:Y"\nsubject = "output"', set()),
    ],
)
def test_attention_and_output_of_one_name_are_two_rows(tmp_path: Path, entry: str, subjects: set[Subject]) -> None:
    """An entry without a subject is one of an earlier version, where the name had a prefix."""
    path = tmp_path / "known.toml"
    path.write_text(f'[[known]]\nkind = "agreement"\nwhy = "seen"\n{entry}\n', encoding="utf-8")
    records = [AgreementRecord(subject=one, site="Y", outcome=Outcome.DISAGREES) for one in Subject]
    found = read_expected(path).sort(records)
    assert {one.subject for one in records if one not in found.new} == subjects  # type: ignore[union-attr]


def test_written_entries_tell_an_output_from_an_attention(tmp_path: Path) -> None:
    """Each written entry matches its own row alone."""
    rows = [
        GateRecord(subject=one, site="Y", outcome=Outcome.DISAGREES, word=GateVerdict.REGRESSION) for one in Subject
    ]
    for index, record in enumerate(rows):
        path = tmp_path / f"known-{index}.toml"
        path.write_text(write_known([record], known=KnownFindings()), encoding="utf-8")
        found = read_expected(path)
        assert [found.find(one) is not None for one in rows] == [one is record for one in rows]


@pytest.mark.parametrize(("outcome", "known"), [("failed", True), ("timed-out", True), ("disagrees", False)])
def test_no_answer_in_time_is_a_known_failure(tmp_path: Path, outcome: str, known: bool) -> None:
    """Earlier versions called it failed; an entry for a timeout does not cover a crash."""
    path = tmp_path / "known.toml"
    path.write_text(f'[[known]]\nkind = "agreement"\nwhy = "seen"\noutcome = "{outcome}"\n', encoding="utf-8")
    record = AgreementRecord(outcome=Outcome.TIMED_OUT, reason="ort-cpu gave no answer in 20 s.")
    assert is_bad(record)
    assert bool(read_expected(path).find(record)) is known
    crashed = AgreementRecord(outcome=Outcome.FAILED)
    assert bool(read_expected(path).find(crashed)) is (outcome == "failed")
