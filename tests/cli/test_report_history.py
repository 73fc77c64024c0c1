import dataclasses
from pathlib import Path

import msgspec
import pytest

from sdpa_onnx.core.compare.history import StoredRun
from sdpa_onnx.core.records.records import encode_record
from tests.cli.invoke import Shell
from tests.report.synthetic_history import stored, upgraded

_VERDICT = "2 series became slower, by up to 1.22 x from 2026-07-06 on, of 4 series in 10 runs. "


def _store(run: StoredRun, folder: Path) -> None:
    """Write a run as the store does; each record is its own job."""
    folder.mkdir(parents=True)
    header = dataclasses.replace(run.header, planned_cells=len(run.records))
    (folder / "run.json").write_bytes(msgspec.json.encode(header))
    named = [msgspec.structs.replace(one, job=str(number), cell=str(number)) for number, one in enumerate(run.records)]
    (folder / "records.jsonl").write_bytes(b"".join(encode_record(record) + b"\n" for record in named))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """A command line next to a folder of runs: ten readable ones, one unfinished, one broken."""
    for run in upgraded():
        _store(run, tmp_path / "runs" / run.name)
    _store(stored(11, finished=None), tmp_path / "runs" / "stopped")
    _store(stored(12), tmp_path / "runs" / "broken")
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    (tmp_path / "runs" / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capfd)


def test_history_of_a_folder_of_runs(command: Shell) -> None:
    """Findings and tables are printed, and files written next to the runs; a second call does not read them as runs."""
    ended = command("report", "runs")
    assert (ended.code, ended.stderr) == (0, "")
    assert " ".join(ended.stdout.split()).startswith(_VERDICT)
    assert "broken is skipped: runs/broken/run.json: Input data was truncated." in ended.stdout
    assert "stopped is skipped: it was not finished (6 of 6 cells)." in ended.stdout
    assert "notes" not in ended.stdout
    assert ended.stdout.endswith("\nReport: runs/history.html\n")
    assert (command.folder / "runs" / "history.html").exists()
    assert command("report", "runs").stdout == ended.stdout


def test_json_has_every_point(command: Shell) -> None:
    """Only the data is printed."""
    ended = command("report", "runs", "--json")
    assert ended.code == 0
    data = msgspec.json.decode(ended.stdout)
    assert [(len(one["points"]), len(one["changes"])) for one in data] == [(10, 0), (10, 1), (10, 0), (10, 1)]


def test_folder_with_only_broken_runs(command: Shell) -> None:
    """One message has the reasons, and nothing is written."""
    for number, header in enumerate(sorted((command.folder / "runs").glob("*/run.json"))):
        header.write_text("{") if number else header.unlink()
    sentence = command.refusal("report", "runs")
    assert sentence.startswith("No run in runs can be read. ")
    assert sentence.count("Input data was truncated.") == 11


def test_a_folder_without_runs_is_no_run(command: Shell) -> None:
    """The message is that of a missing run."""
    expected = "runs/notes contains no run. A run folder has a run.json."
    assert command.refusal("report", Path("runs") / "notes") == expected


def test_one_invalid_run_is_skipped(command: Shell) -> None:
    """A run with an impossible figure is skipped with a message; the other runs are used."""
    run = stored(13)
    spoilt = [msgspec.structs.replace(one, ratio=0.0) for one in run.records]  # type: ignore[call-arg]
    _store(dataclasses.replace(run, records=spoilt), command.folder / "runs" / "spoilt")
    ended = command("report", "runs")
    assert (ended.code, ended.stderr) == (0, "")
    assert " ".join(ended.stdout.split()).startswith(_VERDICT)
    text = " ".join(ended.stdout.split())
    assert "spoilt is skipped: runs/spoilt/records.jsonl:1: the ratio 0 is not between 1e-06 and 1e+06." in text
