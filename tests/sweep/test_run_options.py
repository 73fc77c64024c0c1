"""`run --skip` and `run --budget`: what is left out is said, and the rest is carried out."""

from pathlib import Path

import pytest

from sdpa_onnx.cli.main import app
from sdpa_onnx.sweep.plan import JobKind
from sdpa_onnx.sweep.run import RunObserver
from sdpa_onnx.sweep.store import Store, read_run
from sdpa_onnx.sweep.suite import Suite
from tests.sweep.suites import TINY, write_suite

_TEXT = TINY + "\n[saturation]\nhead_dim = [8]\nkv_seq_len = [16]\n"


@pytest.fixture(autouse=True)
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Suite]:
    """The suites that would be run; nothing is."""
    suites: list[Suite] = []

    def note(suite: Suite, store: Store, watcher: RunObserver, **limits: object) -> None:
        suites.append(suite)

    monkeypatch.setattr("sdpa_onnx.sweep.run.run_jobs", note)
    monkeypatch.chdir(tmp_path)
    write_suite(tmp_path, _TEXT)
    return suites


def _run(*options: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        app(["run", "tiny.toml", "--out", "run", *options])
    return ended.value.code


def test_skip_leaves_kinds_out_and_says_so(tmp_path: Path, planned: list[Suite]) -> None:
    """The suite has no such jobs, the header and the report name what was left out, and so does the command."""
    assert _run("--skip", "time", "--skip", "saturation") == 0
    assert (planned[0].timing, planned[0].saturation, planned[0].agreement) == ((), None, ("ort-cpu", "torch"))
    header, _ = read_run(tmp_path / "run")
    assert header.skipped_kinds == (JobKind.TIME, JobKind.SATURATION)
    assert header.command == "sdpa-onnx run tiny.toml --skip time --skip saturation"
    assert "| left out | time, saturation |" in (tmp_path / "run" / "summary.md").read_text(encoding="utf-8")


def test_unknown_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt kind ends the command before a folder is made, with the nearest one."""
    assert _run("--skip", "tim") == 2
    assert capsys.readouterr().err == (
        "sdpa-onnx: There is no kind of job 'tim' that can be skipped. Did you mean 'time'?\n"
    )
    assert _run("--skip", "export") == 2
    assert capsys.readouterr().err == (
        "sdpa-onnx: There is no kind of job 'export' that can be skipped. Known: time, agreement, saturation.\n"
    )
    assert not (tmp_path / "run").exists()


def test_budget_stands_in_the_header_and_not_in_the_command(tmp_path: Path) -> None:
    """The command that repeats or resumes a run reaches every cell."""
    assert _run("--budget", "60") == 0
    header, _ = read_run(tmp_path / "run")
    assert (header.budget_seconds, header.command) == (60.0, "sdpa-onnx run tiny.toml")
