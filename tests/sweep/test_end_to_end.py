"""A tiny suite through the real command line: finished, read again, interrupted, killed."""

import json
import shlex
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.cli.main import app
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.sweep.plan import job_id, plan
from sdpa_onnx.sweep.store import read_run
from sdpa_onnx.sweep.suite import load_suite
from tests.sweep.fakes import Throwing, plant
from tests.sweep.process import line_count, sdpa_onnx, start, wait_until
from tests.sweep.suites import TINY, write_suite

# One real run of half a minute serves most of these; `test_run` and `test_runner` test the parts.
pytestmark = pytest.mark.slow

_ONE_CASE = TINY.replace("is_causal = [false, true]", "is_causal = [true]")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the suite and a finished run of it, and the output of the process."""
    folder = tmp_path_factory.mktemp("finished")
    write_suite(folder)
    done = sdpa_onnx("run", "tiny.toml", "--out", "run", cwd=folder)
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    assert done.returncode == 0, done.stderr
    return folder


def _rendered(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".md", ".svg")
    }


def _assert_complete(folder: Path, suite: Path) -> None:
    """Every planned job is in the file exactly once, with all its parts, and its samples are readable."""
    planned = [job_id(job) for job in plan(load_suite(str(suite)))]
    header, records = read_run(folder)
    assert header.is_finished
    assert sorted({record.job for record in records}) == sorted(planned)
    assert all(count == records_of[0].parts for records_of, count in _by_job(records))
    lines = (folder / "records.jsonl").read_bytes().splitlines()
    cells = Counter(json.loads(line)["cell"] for line in lines)
    assert set(cells.values()) == {1}
    assert len(lines) == len(records)
    for record in records:
        if isinstance(record, TimingRecord):
            with np.load(folder / record.samples) as archive:
                assert archive["wall_seconds"].size == record.calls


def _by_job(records: list) -> list:  # type: ignore[type-arg]
    jobs: dict[str, list] = {}  # type: ignore[type-arg]
    for record in records:
        jobs.setdefault(record.job, []).append(record)
    return [(found, len(found)) for found in jobs.values()]


def test_every_cell_is_done_once(finished: Path) -> None:
    """A run from start to end has every planned job, all of them right."""
    _assert_complete(finished / "run", finished / "tiny.toml")
    assert {record.outcome.value for record in read_run(finished / "run")[1]} == {"ok"}


def test_files_of_a_run(finished: Path) -> None:
    """The folder has the contents described in DESIGN, and no temporary file."""
    names = {path.relative_to(finished / "run").parts[0] for path in (finished / "run").rglob("*")}
    assert {"run.json", "records.jsonl", "samples", "models", "summary.md", "index.html"} <= names
    assert not [path for path in (finished / "run").rglob(".*") if path.name != ".lock"]


def test_summary_starts_with_what_was_found(finished: Path) -> None:
    """The first sentence has the number of checks that agree and their largest error; the terminal has the same."""
    first = (finished / "run" / "summary.md").read_text().splitlines()[:4]
    said = " ".join((finished / "stdout").read_text().split())
    sentence = "All 4 checks agree with the float64 oracle (largest error: "
    assert said.startswith(sentence)
    assert first[2].startswith(f"**{sentence}")
    assert (finished / "stdout").read_text().endswith("\nReport: run/index.html\n")


def test_words_for_the_person_are_on_stderr(finished: Path) -> None:
    """stderr has the folder of the run; colours are nowhere in a pipe."""
    assert (finished / "stderr").read_text().splitlines()[0] == "sdpa-onnx: writing run"
    assert "\x1b" not in (finished / "stderr").read_text() + (finished / "stdout").read_text()


def test_header_is_the_command_that_repeats_it(finished: Path) -> None:
    """run.json has the command line as it was typed; the folder, which is taken by then, is free to choose."""
    assert read_run(finished / "run")[0].command in (
        "sdpa-onnx run tiny.toml",
        "sdpa-onnx run tiny.toml --out run",
    )


def test_report_again_is_the_same_to_the_byte(finished: Path) -> None:
    """Rendered files are pure functions of the records: two more renderings change nothing."""
    before = _rendered(finished / "run")
    assert "summary.md" in before
    for _ in range(2):
        done = sdpa_onnx("report", "run", cwd=finished)
        assert (done.returncode, done.stderr) == (0, "")
        assert _rendered(finished / "run") == before
    assert done.stdout == (finished / "stdout").read_text()


def test_json_is_only_json(finished: Path) -> None:
    """--json puts the records on stdout, and nothing else."""
    done = sdpa_onnx("report", "run", "--json", cwd=finished)
    assert (done.returncode, done.stderr) == (0, "")
    assert [record["cell"] for record in json.loads(done.stdout)] == [
        record.cell for record in read_run(finished / "run")[1]
    ]


def test_resuming_a_finished_run_does_nothing_more(finished: Path) -> None:
    """Resuming a finished run runs no job, keeps the records and prints the same, here as JSON."""
    records = (finished / "run" / "records.jsonl").read_bytes()
    samples = {path.name: path.stat().st_mtime_ns for path in (finished / "run" / "samples").iterdir()}
    done = sdpa_onnx("run", "tiny.toml", "--out", "run", "--resume", "--json", cwd=finished)
    assert (done.returncode, done.stderr) == (0, "sdpa-onnx: resuming run\n")
    assert len(json.loads(done.stdout)) == 10
    assert (finished / "run" / "records.jsonl").read_bytes() == records
    assert {path.name: path.stat().st_mtime_ns for path in (finished / "run" / "samples").iterdir()} == samples
    assert read_run(finished / "run")[0].is_finished


def test_starting_where_a_run_is(finished: Path) -> None:
    """Without --resume a folder with a run is refused in one sentence, and left alone."""
    records = (finished / "run" / "records.jsonl").read_bytes()
    done = sdpa_onnx("run", "tiny.toml", "--out", "run", cwd=finished)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "sdpa-onnx: run already contains a run. Continue it with --resume, or choose another --out.\n"
    assert (finished / "run" / "records.jsonl").read_bytes() == records


def test_interrupt_and_go_on(tmp_path: Path) -> None:
    """Ctrl-C in the middle ends with 130 and a report of what there is; the printed command completes the run."""
    write_suite(tmp_path, _ONE_CASE)
    records = tmp_path / "run" / "records.jsonl"
    process = start("run", "tiny.toml", "--out", "run", "--seed", "3", cwd=tmp_path)
    wait_until(lambda: line_count(records) >= 2, process)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in stderr) == (130, False), stderr
    done = len({record.job for record in read_run(tmp_path / "run")[1]})
    assert 2 <= done < 4
    assert (tmp_path / "run" / "summary.md").exists()
    assert f"{done} of 4 cells are done" in stdout
    message, command = stderr.splitlines()[-1].split("; resume with: ")
    assert message == f"sdpa-onnx: interrupted after {done} of 4 cells"
    kept = records.read_bytes()
    resumed = sdpa_onnx(*shlex.split(command)[1:], cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert records.read_bytes().startswith(kept)
    header, found = read_run(tmp_path / "run")
    assert (header.is_finished, header.seed) == (True, 3)
    assert len({record.cell for record in found}) == len(found) == 5


def _kill_and_go_on(folder: Path, moments: list[float]) -> None:
    """Start, kill at moments (seconds after the first record, or None), resume to the end, and check."""
    records = folder / "run" / "records.jsonl"
    resume: list[str] = []
    for moment in moments:
        process = start("run", "tiny.toml", "--out", "run", *resume, cwd=folder)
        wait_until((folder / "run" / "run.json").exists, process)
        time.sleep(moment)
        process.kill()
        process.communicate(timeout=60)
        resume = ["--resume"]
        finished = read_run(folder / "run")[1]
        assert len({record.cell for record in finished}) == len(finished)
        assert records.exists()
    done = sdpa_onnx("run", "tiny.toml", "--out", "run", "--resume", cwd=folder)
    assert done.returncode == 0, done.stderr
    _assert_complete(folder / "run", folder / "tiny.toml")


def test_one_kill(tmp_path: Path) -> None:
    """kill -9 right after a record was written loses no finished job, and the resumed run has each once."""
    write_suite(tmp_path, _ONE_CASE)
    records = tmp_path / "run" / "records.jsonl"
    process = start("run", "tiny.toml", "--out", "run", cwd=tmp_path)
    wait_until(lambda: line_count(records) >= 2, process)
    process.kill()
    process.communicate(timeout=60)
    kept = records.read_bytes()
    done = sdpa_onnx("run", "tiny.toml", "--out", "run", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert records.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    _assert_complete(tmp_path / "run", tmp_path / "tiny.toml")


def test_five_kills(tmp_path: Path) -> None:
    """kill -9 at five random moments, each run resumed: every planned job is there exactly once at the end."""
    write_suite(tmp_path)
    rng = np.random.default_rng(20261129)
    _kill_and_go_on(tmp_path, [float(rng.uniform(0.05, 5.0)) for _ in range(5)])


def test_failed_cell_exits_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failing cell makes the exit code 1; the first sentence reports it, and progress names the job."""
    write_suite(tmp_path, _ONE_CASE.replace('timing = ["ort-cpu", "torch"]\n', ""))
    plant(monkeypatch, Throwing(name="torch", error=RuntimeError("no kernel")))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        app(["run", "tiny.toml", "--out", "run"])
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert printed.err.replace("\r", "").splitlines() == [
        "sdpa-onnx: writing run",
        "failed: verify sdpa causal d_k 8 batch 1 length 16 opset 23 on torch",
    ]
    assert not printed.out.startswith("All ")
    assert "RuntimeError: no kernel" in " ".join(printed.out.split())


@pytest.mark.parametrize("option", [("--seed", "3"), ("--threads", "2"), ("--runtime", "ort-cpu")])
def test_stored_command_has_every_option(
    tmp_path: Path, option: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that repeats a run names what the command line changed of its suite."""
    monkeypatch.chdir(tmp_path)
    write_suite(tmp_path)
    monkeypatch.setattr("sdpa_onnx.sweep.run.run_jobs", lambda *_, **__: None)
    with pytest.raises(SystemExit):
        app(["run", "tiny.toml", "--out", "run", *option])
    words = shlex.split(read_run(tmp_path / "run")[0].command)
    assert words[:3] == ["sdpa-onnx", "run", "tiny.toml"]
    assert [words[at : at + 2] for at in range(len(words))].count(list(option)) == 1
