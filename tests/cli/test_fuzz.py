"""`fuzz`: exit codes, known findings, how to continue, and mistakes. Except in one test, the cases are faked."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from sdpa_onnx.core.attention.random_cases import CASES_PER_GRAPH, RandomCase, RandomGraph, draw_case, draw_graph
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.records.records import Conformity, Verdict
from sdpa_onnx.workflows.check.case_trial import Sessions
from sdpa_onnx.workflows.fuzz.case import CaseOutcome, FuzzFinding
from tests.cli.invoke import Shell

_HAS_THE_FAULT = pytest.mark.skipif(version("onnxruntime") != "1.32.0", reason="the fault of onnxruntime 1.32.0")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """A command line in an empty folder, because these tests need no model."""
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capfd)


def plant(monkeypatch: pytest.MonkeyPatch, bad: dict[int, Conformity], *, stops_at: int = -1) -> list[int]:
    """Fake the result of each case; return the list of the numbers that ran."""
    ran: list[int] = []

    def run(case: RandomCase, _sessions: Sessions) -> CaseOutcome:
        if case.number == stops_at:
            raise KeyboardInterrupt
        ran.append(case.number)
        if case.number not in bad:
            return CaseOutcome(verdict=Verdict.OK)
        kind = bad[case.number]
        finding = FuzzFinding(
            number=case.number,
            case_id=case.case.case_id,
            words=case.graph.words,
            source=case.source,
            elements=case.elements,
            kind=kind,
            message=f"seen in case {case.number}.",
            output="Y" if kind.disagrees else "",
        )
        return CaseOutcome(verdict=Verdict(kind.value) if kind.disagrees else None, findings=(finding,))

    monkeypatch.setattr("sdpa_onnx.workflows.fuzz.run.run_random", run)
    return ran


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        *((None, 0), (Conformity.REFUSED, 0), (Conformity.WRONG, 1), (Conformity.SUSPICIOUS, 1)),
        (Conformity.CRASHED, 1),
    ],
)
def test_exit_codes(shell: Shell, monkeypatch: pytest.MonkeyPatch, kind: Conformity | None, code: int) -> None:
    """Wrong outputs and crashes fail the command; refusals are only reported."""
    plant(monkeypatch, {} if kind is None else {2: kind})
    ended = shell("fuzz", "--cases", "4", "--no-reduce")
    assert (ended.code, ended.stderr) == (code, "")
    assert "To continue: sdpa-onnx fuzz --runtime ort-cpu --seed 0 --start 4\n" in ended.stdout
    counted = {None: "4 right", Conformity.REFUSED: "1 refused", Conformity.WRONG: "1 wrong"}
    counted |= {Conformity.SUSPICIOUS: "1 suspicious, 0 wrong"}
    assert counted.get(kind, "1 crashed") in " ".join(ended.stdout.split())


def test_text_of_a_group(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text has the number of cases, an example, the first case, and the command that repeats it."""
    plant(monkeypatch, {5: Conformity.CRASHED, 6: Conformity.CRASHED})
    text = " ".join(shell("fuzz", "--start", "4", "--cases", "4", "--seed", "9", "--no-reduce").stdout.split())
    assert text.startswith(
        "1 kind of finding in 4 random cases on ort-cpu, the worst: crashed: seen in case #. "
        "- 2 cases: crashed: seen in case #. Example: case "
    )
    assert "sdpa-onnx fuzz --runtime ort-cpu --seed 9 --start" in text
    assert "4 cases (numbers 4 to 7): 2 right, 0 rounding-level, 0 suspicious, 0 wrong, 0 refused, 2 crashed." in text


def test_what_runs(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases start at --start; none runs after --seconds are over."""
    ran = plant(monkeypatch, {})
    shell("fuzz", "--start", "7", "--cases", "3")
    assert ran == [7, 8, 9]
    ended = shell("fuzz", "--start", "7", "--cases", "3", "--seconds", "0")
    assert (ended.code, ran) == (0, [7, 8, 9])
    assert "--start 7\n" in ended.stdout


def test_interrupt(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C prints the findings and the command that continues, and exits with 130."""
    plant(monkeypatch, {1: Conformity.WRONG}, stops_at=3)
    ended = shell("fuzz", "--cases", "9")
    assert ended.code == 130
    text = " ".join(ended.stdout.split())
    assert "1 case: Y wrong" in text
    assert "3 cases (numbers 0 to 2, stopped early)" in text
    assert text.endswith("To continue: sdpa-onnx fuzz --runtime ort-cpu --seed 0 --start 3")


def test_json_and_known_findings(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records go to stdout and the summary to stderr; a listed finding passes, another one fails."""
    plant(monkeypatch, {2: Conformity.CRASHED})
    Path("k.toml").write_text(
        '[[known]]\nkind = "agreement"\ntarget = "fuzz"\nreason = "crashed: seen*"\nwhy = "seen"\n'
    )
    Path("other.toml").write_text('[[known]]\nkind = "agreement"\ntarget = "fuzz"\nreason = "other"\nwhy = "seen"\n')
    known = shell("fuzz", "--cases", "4", "--no-reduce", "--json", "--expect", "k.toml")
    (record,) = json.loads(known.stdout)
    assert (known.code, record["kind"], record["outcome"], record["seed"]) == (0, "agreement", "failed", 0)
    assert record["diagnosis"] == "seen in case 2."
    assert "sdpa-onnx: To continue: sdpa-onnx fuzz --runtime ort-cpu --seed 0 --start 4" in known.stderr.splitlines()
    assert shell("fuzz", "--cases", "4", "--no-reduce", "--expect", "other.toml").code == 1


def test_own_fault_fails_the_command(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case on which sdpa-onnx itself fails is reported and counted."""

    def broken(case: RandomCase, _sessions: Sessions) -> CaseOutcome:
        raise ValueError(f"at {case.number}")

    monkeypatch.setattr("sdpa_onnx.workflows.fuzz.run.run_random", broken)
    ended = shell("fuzz", "--cases", "7")
    lines = ended.stderr.splitlines()
    assert (ended.code, len(lines), lines[-1]) == (1, 6, "sdpa-onnx: sdpa-onnx itself failed on 2 more cases.")
    assert "itself fail: ValueError: at 0. Please report it." in lines[0]
    assert "0 crashed, 7 not judged." in " ".join(ended.stdout.split())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--runtime", "all"], "fuzz runs on one runtime at a time. Give its name with --runtime."),
        (["--cases", "0"], None),
        (
            ["--keep", "here", "--no-reduce"],
            "--keep needs reduced cases, which --no-reduce turns off. Use only one of them.",
        ),
        (["--keep", "a-file"], "a-file is not a folder. Choose another path."),
        (["--expect", "gone.toml"], "Cannot read known findings gone.toml: No such file or directory."),
        (["--runtime", "ort-cpy"], None),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, list) else "",
)
def test_mistakes_are_reported_before_anything_runs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str | None
) -> None:
    """An unknown name is rejected before the work starts."""
    ran = plant(monkeypatch, {})
    Path("a-file").write_text("")
    message = shell.refusal("fuzz", *options)
    assert sentence is None or message == sentence
    assert ran == []


@_HAS_THE_FAULT
def test_real_fault_is_found_reduced_and_kept(shell: Shell) -> None:
    """One query with several new keys, in a separate process, is named, reduced and written as a bundle."""
    graphs = (number for number in range(0, 80_000, CASES_PER_GRAPH) if _shows_it(draw_graph(0, number)))
    cases = (draw_case(0, number) for first in graphs for number in range(first, first + CASES_PER_GRAPH))
    number = next(
        case.number for case in cases if case.case.q_seq_len == 1 < case.case.kv_seq_len and not case.is_empty
    )
    ended = shell("fuzz", "--start", str(number), "--cases", "1", "--keep", "kept")
    assert ended.code == 1
    text = " ".join(ended.stdout.split())
    assert text.startswith(
        "1 kind of finding in 1 random case on ort-cpu, the worst: Y wrong (native): "
        "it looks as if a single query attends to every key"
    )
    assert "Smallest: b1_hq1_hkv1_q1_kv2_d1_f32_causal_past" in text
    assert ended.stderr == f"sdpa-onnx: wrote kept/wrong_seed0_case{number}.zip\n"


def _shows_it(graph: RandomGraph) -> bool:
    spec = graph.spec
    plain = not spec.has_window and not graph.mask_form and graph.qk_mode is None and graph.softmax_precision is None
    return plain and spec.is_causal and spec.has_past and spec.scale_value > 0 and graph.dtype is Dtype.FLOAT32
