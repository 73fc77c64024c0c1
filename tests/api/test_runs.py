"""`run` in Python is the job of the command: the same folder, records and refusals."""

from pathlib import Path

import pytest

import sdpa_onnx as so
from sdpa_onnx.cli.main import app
from sdpa_onnx.core.records.records import ExportRecord, Outcome, SaturationRecord, TimingRecord
from sdpa_onnx.errors import PlanError
from sdpa_onnx.sweep.run import RunObserver
from sdpa_onnx.sweep.store import Store, read_run
from sdpa_onnx.sweep.suite import Suite
from tests.sweep.suites import TINY, write_suite

_TEXT = TINY.replace("is_causal = [false, true]", "is_causal = [true]")
_SATURATION = "\n[saturation]\nhead_dim = [8]\nkv_seq_len = [16]\nmodule = false\n"


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Suite]:
    """The suites that would be run; nothing is."""
    suites: list[Suite] = []

    def note(suite: Suite, store: Store, watcher: RunObserver, **limits: object) -> None:
        suites.append(suite)

    monkeypatch.setattr("sdpa_onnx.sweep.run.run_jobs", note)
    monkeypatch.chdir(tmp_path)
    write_suite(tmp_path, _TEXT + _SATURATION)
    return suites


def test_options_have_the_meaning_of_the_command(tmp_path: Path, planned: list[Suite]) -> None:
    """Both plan the same suite, and their headers name the same command that repeats it."""
    records = so.run(
        "tiny.toml",
        out=tmp_path / "python",
        runtimes=["ort-cpu"],
        skip=["saturation"],
        budget=60.0,
        threads=2,
        seed=3,
    )
    options = ["--runtime", "ort-cpu", "--skip", "saturation", "--budget", "60", "--threads", "2", "--seed", "3"]
    with pytest.raises(SystemExit) as ended:
        app(["run", "tiny.toml", "--out", "command", *options])
    assert ended.value.code == 0
    assert (records, records.folder) == ([], tmp_path / "python")
    assert planned[0] == planned[1]
    assert (planned[0].timing, planned[0].saturation, planned[0].threads, planned[0].seed) == (("ort-cpu",), None, 2, 3)
    headers = [read_run(tmp_path / name)[0] for name in ("python", "command")]
    assert headers[0].command == headers[1].command
    assert headers[0].plan_hash == headers[1].plan_hash
    assert headers[0].skipped_kinds == headers[1].skipped_kinds == ("saturation",)
    assert headers[0].budget_seconds == headers[1].budget_seconds == 60.0


def test_folder_that_is_not_named(tmp_path: Path, planned: list[Suite]) -> None:
    """It is a new one in `reports`, and `resume` finds it again."""
    folder = so.run(Path("tiny.toml")).folder
    assert folder is not None
    assert folder.parent == Path("reports")
    assert (tmp_path / folder / "index.html").exists()
    assert so.run("tiny.toml", resume=True).folder == folder


def test_known_findings_of_a_resumed_run_stay_in_its_report(tmp_path: Path, planned: list[Suite]) -> None:
    """The command stored a list of known findings; its report still says so after Python resumed the run."""
    (tmp_path / "known.toml").write_text('[[known]]\nkind = "agreement"\nruntime = "ort-cpu"\nwhy = "reported"\n')
    with pytest.raises(SystemExit):
        app(["run", "tiny.toml", "--out", "run", "--expect", "known.toml"])
    before = (tmp_path / "run" / "summary.md").read_text(encoding="utf-8")
    assert "Compared with the known findings: 0 new, 0 known, 0 vanished, 1 unused." in before
    so.run("tiny.toml", out="run", resume=True)
    assert (tmp_path / "run" / "summary.md").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"suite": "smok"}, "There is no suite 'smok'. Did you mean 'smoke'?"),
        ({"skip": ["tim"]}, "There is no kind of job 'tim' that can be skipped. Did you mean 'time'?"),
        ({"runtimes": ["onnx-reference"]}, "The suite does not use runtime 'onnx-reference'. It uses ort-cpu, torch."),
        ({"threads": 0}, "threads is 0. Give at least 1."),
        ({"seed": -1}, "seed is -1. Give at least 0."),
        ({"budget": 0.9}, "budget is 0.9 s. Give at least 1."),
        ({"budget": "x"}, "budget is 'x', not a number of seconds. Give at least 1."),
    ],
)
def test_refused_before_a_folder_is_made(
    tmp_path: Path, planned: list[Suite], options: dict[str, object], text: str
) -> None:
    """One sentence for what is wrong, and nothing is written."""
    with pytest.raises(PlanError) as refused:
        so.run(**{"suite": "tiny.toml", **options})  # type: ignore[arg-type]
    assert str(refused.value) == text
    assert not (tmp_path / "reports").exists()
    assert planned == []


@pytest.mark.slow
def test_a_tiny_suite(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Records of every kind that was not skipped, in memory and in the folder, its report, and no output."""
    suite = write_suite(tmp_path, _TEXT + _SATURATION)
    records = so.run(suite, out=tmp_path / "run", skip=["saturation"])
    header, stored = read_run(tmp_path / "run")
    assert records == stored
    assert (records.folder, records[:2].folder) == (tmp_path / "run", tmp_path / "run")
    assert (header.planned_cells, header.done_cells, header.is_finished) == (4, 4, True)
    assert {record.outcome for record in records} == {Outcome.OK}
    kinds = {type(record) for record in records}
    assert {ExportRecord, TimingRecord} <= kinds
    assert SaturationRecord not in kinds
    assert "<table" in (tmp_path / "run" / "index.html").read_text(encoding="utf-8")
    assert (tmp_path / "run" / "summary.md").exists()
    assert capfd.readouterr().out == ""
