"""`sdpa-onnx compare` on stored runs and benchmark files: exit codes, files, known findings, errors."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from sdpa_onnx.cli.compare_files import method_sentence
from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.records import Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.core.records.verdicts import Outcome, Verdict
from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.measure import calibration
from sdpa_onnx.sweep.comparison_kind import ComparisonKind
from sdpa_onnx.sweep.store import Store
from sdpa_onnx.workflows.compare import models as compare_models
from sdpa_onnx.workflows.compare.models import CompareOptions
from tests.cli.invoke import Shell
from tests.core.gate_problems import MACHINE, TORCH, agreed, timed

pytestmark = pytest.mark.alone

_WRONG = agreed(verdict=Verdict.WRONG, outcome=Outcome.DISAGREES, diagnosis="Off by one.")


def write_run(name: str, *records: Record) -> None:
    header = RunHeader(
        suite="ci",
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:01:00+00:00",
        command="sdpa-onnx run ci",
        environment=MACHINE.environment,
        versions=MACHINE.versions,
        planned_cells=1,
    )
    with Store.create(Path(name), header) as store:
        numbered = [
            msgspec.structs.replace(record, cell=str(number), job="job", parts=len(records))
            for number, record in enumerate(records)
        ]
        store.append(numbered)


@pytest.fixture
def runs(shell: Shell) -> Shell:
    """The run `base`, and to compare with it: `same` and `worse` (wrong and 20 % slower)."""
    write_run("base", agreed(), timed(), TORCH)
    write_run("same", agreed(), timed(), TORCH)
    write_run("worse", _WRONG, timed(ratio=1.2), TORCH)
    return shell


def test_no_change_is_exit_0(runs: Shell) -> None:
    """The verdict is the first line."""
    ended = runs("compare", "base", "same")
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.startswith("No regression in 4 checks: 4 the same.\n")


def test_a_regression_is_exit_1_and_in_every_file(runs: Shell) -> None:
    """Terminal, Markdown, page, JUnit and JSON report the same regressions."""
    ended = runs("compare", "base", "worse", "--markdown", "c.md", "--html", "c.html", "--junit", "c.xml")
    assert ended.code == 1
    assert " 2 of 4 checks fail." in " ".join(ended.stdout.split())
    assert ended.stderr == "sdpa-onnx: wrote c.md\nsdpa-onnx: wrote c.html\nsdpa-onnx: wrote c.xml\n"
    assert "<title>Attention: 2 regressions</title>" in Path("c.html").read_text()
    assert "## \u274c Attention: 2 regressions\n" in Path("c.md").read_text()
    assert "sdpa-onnx compare base worse --markdown c.md --html c.html --junit c.xml\n" in Path("c.md").read_text()
    root = ET.fromstring(Path("c.xml").read_bytes())  # noqa: S314 - our own text
    assert (root.get("tests"), root.get("failures")) == ("4", "2")
    rows = json.loads(runs("compare", "base", "worse", "--json").stdout)
    assert [row["gate"] for row in rows if row["word"] == "regression"] == ["agreement", "time"]


def test_markdown_to_stdout_is_only_that(runs: Shell) -> None:
    """`--markdown -` can be piped into the step summary."""
    ended = runs("compare", "base", "worse", "--markdown", "-")
    assert ended.code == 1
    assert ended.stdout.startswith("## \u274c Attention: 2 regressions\n")
    assert ended.stdout.endswith("</details>\n")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--allow", "agreement"], 1),
        (["--allow", "agreement", "--allow", "time"], 0),
        (["--skip", "agreement", "--margin", "25"], 0),
        (["--skip", "agreement", "--margin", "10"], 1),
        (["--skip", "agreement", "--skip", "time", "--strict"], 0),
    ],
)
def test_gates_and_limits(runs: Shell, options: list[str], code: int) -> None:
    """A gate that is allowed or skipped never fails."""
    assert runs("compare", "base", "worse", *options).code == code


def test_known_findings(runs: Shell) -> None:
    """Findings that are written and then expected pass; vanished ones are reported; a new one fails again."""
    written = runs("compare", "base", "worse", "--write-expected", "k.toml")
    assert (written.code, written.stderr) == (0, "sdpa-onnx: wrote k.toml: 2 known findings\n")
    ended = runs("compare", "base", "worse", "--expect", "k.toml")
    assert ended.code == 0
    assert ended.stdout.startswith("No regression in 4 checks: 2 the same and 2 known.\n")
    assert ended.stderr == "sdpa-onnx: Compared with the known findings: 0 new, 2 known, 0 vanished.\n"
    gone = runs("compare", "base", "same", "--expect", "k.toml")
    assert gone.code == 0
    assert "Compared with the known findings: 0 new, 0 known, 2 vanished." in gone.stderr
    Path("k.toml").write_text(Path("k.toml").read_text().partition("[[known]]")[0])
    assert runs("compare", "base", "worse", "--expect", "k.toml").code == 1


def test_missing_record_is_reported(runs: Shell) -> None:
    """A record that HEAD lacks: exit code 0, with --strict 1."""
    write_run("fewer", timed(), TORCH)
    ended = runs("compare", "base", "fewer")
    assert ended.code == 0
    assert "agreement, disappeared: ort-cpu, sdpa" in " ".join(ended.stdout.split())
    assert runs("compare", "base", "fewer", "--strict").code == 1


def test_unfinished_run_is_reported(runs: Shell) -> None:
    """The records of an interrupted run are compared."""
    header = Path("same/run.json")
    header.write_text(header.read_text().replace('"planned_cells": 1', '"planned_cells": 2'))
    assert runs("compare", "base", "same").stderr == "sdpa-onnx: same is unfinished: 1 of 2 cells are done.\n"


def test_benchmark_files_of_another_tool_are_reported_and_not_gated(shell: Shell) -> None:
    """Twice as slow is exit code 0, because two separate timings of a noisy machine prove nothing."""
    for name, seconds in (("a", 1.0), ("b", 2.0), ("none", 0.0)):
        stats = {"median": seconds, "rounds": 5, "min": seconds, "max": seconds, "mean": seconds}
        entry = {"fullname": "t.py::test_x", "name": "test_x", "group": None, "stats": stats, "extra_info": {}}
        Path(f"{name}.json").write_text(json.dumps({"benchmarks": [entry], "machine_info": {}, "version": "5.2.3"}))
    ended = shell("compare", "a.json", "b.json")
    assert ended.code == 0
    assert (
        "its median is 2.000 times that of BASE, but each was timed alone, at two moments of a noisy machine."
        in " ".join(ended.stdout.split())
    )
    assert shell("compare", "a.json", "b.json", "--strict").code == 1
    assert shell("compare", "none.json", "b.json").code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["base", "gone"], "gone does not exist. Give run folders, .onnx files or benchmark .json files."),
        (
            ["base", "a.onnx"],
            "base and a.onnx cannot be compared: run folders and models differ in kind. Give two of the same kind.",
        ),
        (["base", "empty"], "empty contains no run. A run folder has a run.json."),
        (["base", "other"], "base and other have nothing in common to compare. Check both paths."),
        (
            ["base", "same", "--allow", "tim"],
            "--allow tim: unknown gate. Known: agreement, graph, memory, time.",
        ),
        (
            ["base", "same", *(word for gate in ("agreement", "graph", "memory", "time") for word in ("--skip", gate))],
            "--skip names every gate, so nothing is left to compare. Leave one out.",
        ),
        (["base", "same", "--markdown", "."], ". is a folder. Give the name of a file."),
        (
            ["base", "same", "--markdown", "-", "--json"],
            "--markdown - and --json both write to stdout. Give --markdown a file.",
        ),
        (
            ["base", "same", "--base-python", "p"],
            "--base-python applies only to models. Leave out --base-python.",
        ),
        (["base", "same", "--at", "q=1"], "--at applies only to models. Leave out --at."),
        (["a.onnx", "a.onnx", "--pinned", "x"], "--pinned applies only to stored runs. Leave out --pinned."),
        (["a.json", "a.json"], None),
    ],
)
def test_misuse_is_one_sentence(runs: Shell, arguments: list[str], sentence: str | None) -> None:
    """Exit code 2, nothing written."""
    Path("empty").mkdir()
    write_run("other", agreed(case="another"))
    Path("a.onnx").write_bytes(b"")
    Path("a.json").write_bytes(b"{")
    said = runs.refusal("compare", *arguments)
    assert sentence is None or said == sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a.onnx", "b.onnx", "--markdown", "./a.onnx"], "--markdown a.onnx would overwrite an input."),
        (["a.onnx", "b.onnx", "--junit", "link"], "--junit link would overwrite an input."),
        (["a.onnx", "b.onnx", "--inputs", "x", "--junit", "x"], "--junit x would overwrite an input."),
        (["a.onnx", "b.onnx", "--write-expected", "b.onnx"], "--write-expected b.onnx would overwrite an input."),
        (["base", "same", "--expect", "k.toml", "--junit", "k.toml"], "--junit k.toml would overwrite an input."),
        (["base", "same", "--markdown", "c", "--junit", "./c"], "--markdown and --junit both name c."),
    ],
)
def test_nothing_is_overwritten_twice(runs: Shell, arguments: list[str], sentence: str) -> None:
    """An output path that is also an input or another output is rejected before anything runs."""
    for name in ("a.onnx", "b.onnx", "x", "k.toml"):
        Path(name).write_bytes(b"")
    Path("link").symlink_to("a.onnx")
    assert runs.refusal("compare", *arguments).startswith(sentence)


@pytest.mark.parametrize(
    ("skipped", "sentence"),
    [
        ([], "Both were judged, and timed interleaved on one machine."),
        (["agreement"], "Both were timed interleaved on one machine; their numbers were not judged."),
        (["time"], "Both were judged, and their memory was measured; times were not compared."),
        (["memory"], "Both were judged, and timed interleaved on one machine."),
        (["time", "agreement"], "Their memory was measured; nothing was judged, and times were not compared."),
        (["time", "memory"], "Both were judged; they were not timed."),
        (["time", "memory", "agreement"], "Only their graphs were compared; nothing was judged or timed."),
    ],
)
def test_how_two_models_were_compared(skipped: list[str], sentence: str) -> None:
    """The sentence has only what was done and compared. Memory is measured while timing."""
    assert method_sentence(ComparisonKind.MODELS, frozenset(map(Gate, skipped))) == sentence


def test_skipped_times_are_not_mentioned(runs: Shell) -> None:
    """The sentence depends on the gates that the user skips."""
    assert "Stored results; times are compared by their ratios" in " ".join(
        runs("compare", "base", "same").stdout.split()
    )
    assert "Stored results;" not in runs("compare", "base", "same", "--skip", "time").stdout


def test_known_findings_are_not_overwritten(runs: Shell) -> None:
    """The file contains reasons that somebody wrote."""
    Path("k.toml").write_text("")
    assert runs.refusal("compare", "base", "same", "--write-expected", "k.toml") == (
        "k.toml already exists and is not overwritten. Choose another name; --expect k.toml copies its reasons into "
        "the new file."
    )


def test_options_reach_the_comparison_of_models(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds, margin and the saved calibration of this machine reach the comparison."""
    received: list[CompareOptions] = []

    def compared(_base: Path, _head: Path, one: CompareOptions) -> list[GateRecord]:
        received.append(one)
        return [GateRecord()]

    own = Calibration(between_sd=0.0031, degrees=33.0, machine="box")
    monkeypatch.setattr(compare_models, "compare_models", compared)
    monkeypatch.setattr(calibration, "load_calibration", lambda: own)
    assert shell("compare", "bare.onnx", "decomposed.onnx", "--seconds", "7", "--margin", "3").code == 0
    (one,) = received
    assert (one.plan.calibration, one.plan.budget_seconds, one.limits.margin) == (own, 7.0, 0.03)
