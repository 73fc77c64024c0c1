"""A run from start to end, and when it may be resumed."""

import itertools
from pathlib import Path

import pytest

from sdpa_onnx.cli.expect import exit_code
from sdpa_onnx.core.attention.roofline import Ceilings
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.errors import PlanError, RuntimeNotFoundError
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.sweep import run
from sdpa_onnx.sweep.models import ModelCache
from sdpa_onnx.sweep.plan import Job, job_id, plan
from sdpa_onnx.sweep.run import RunObserver, latest_folder, new_folder, open_run, run_jobs
from sdpa_onnx.sweep.store import Store, read_run
from sdpa_onnx.sweep.suite import Suite
from tests.measure.fake_workers import FakeMachine
from tests.sweep.fakes import Throwing, plant
from tests.sweep.suites import TINY, job_records, suite_of

# Exported once for all tests; what is exported is not what they test.
_MODELS = ModelCache()
_QUICK = TINY.replace("is_causal = [false, true]\n", "").replace("0.3", "0.02").replace("0.05", "0.002")


@pytest.fixture(autouse=True)
def _known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds of measuring the machine, and real workers, test nothing here."""
    known = Ceilings(gemm_flops_per_second=1e9, exps_per_second=1e8, bytes_per_second=1e10)
    monkeypatch.setattr(run, "measure_ceilings", lambda **_: known)
    monkeypatch.setattr(run, "WorkerPool", FakeMachine().pool)
    monkeypatch.setattr(run, "load_calibration", Calibration)
    monkeypatch.setattr(run, "ModelCache", lambda **_: _MODELS)


def _open(suite: Suite, folder: Path, *, resume: bool = False, force: bool = False) -> Store:
    return open_run(suite, folder, command="sdpa-onnx run tiny", resume=resume, force=force)


def _carry_out(suite: Suite, folder: Path, *, resume: bool = False, force: bool = False) -> list[str]:
    """Run what is left; the ids of the jobs that were left."""
    left: list[str] = []

    def start(jobs: list[Job]) -> None:
        left.extend(job_id(job) for job in jobs)

    watcher = RunObserver(on_start=start)
    with _open(suite, folder, resume=resume, force=force) as store:
        run_jobs(suite, store, watcher)
    return left


def _ids(suite: Suite) -> list[str]:
    return [job_id(job) for job in plan(suite)]


def test_header_tells_the_circumstances(tmp_path: Path) -> None:
    """run.json has what was run, where, with what and how much was planned and done."""
    suite = suite_of(tmp_path, _QUICK)
    _carry_out(suite, tmp_path / "run")
    header, _ = read_run(tmp_path / "run")
    assert (header.suite, header.command, header.threads, header.seed) == ("tiny", "sdpa-onnx run tiny", 1, 0)
    assert (header.planned_cells, header.done_cells, header.is_finished) == (4, 4, True)
    assert header.ceilings == {"gemm_flops_per_second": 1e9, "exps_per_second": 1e8, "bytes_per_second": 1e10}
    assert header.calibration == {"between_sd": Calibration().between_sd, "degrees": Calibration().degrees}
    assert header.started <= (header.finished or "")
    assert {"torch", "onnx", "onnxruntime", "numpy"} <= set(header.versions)
    assert {"cpu", "cores", "os", "python"} <= set(header.environment)


def test_finished_run_has_nothing_left(tmp_path: Path) -> None:
    """Going on with a finished run does no job again and keeps its records."""
    suite = suite_of(tmp_path, _QUICK)
    assert _carry_out(suite, tmp_path / "run") == _ids(suite)
    records = (tmp_path / "run" / "records.jsonl").read_bytes()
    assert _carry_out(suite, tmp_path / "run", resume=True) == []
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == records


def test_only_failed_and_missing_jobs_are_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resuming redoes what failed; what it writes replaces the failure."""
    suite = suite_of(tmp_path, _QUICK)
    with monkeypatch.context() as patch:
        plant(patch, Throwing(name="torch"))
        _carry_out(suite, tmp_path / "run")
    _, records = read_run(tmp_path / "run")
    assert [record.outcome for record in records][:3] == [Outcome.OK, Outcome.OK, Outcome.FAILED]
    assert _carry_out(suite, tmp_path / "run", resume=True) == _ids(suite)[2:3]  # timings ask processes of their own
    _, records = read_run(tmp_path / "run")
    assert {record.outcome for record in records} == {Outcome.OK}
    assert sorted({record.job for record in records}) == sorted(_ids(suite))


@pytest.mark.parametrize("outcome", [Outcome.SKIPPED, Outcome.UNSUPPORTED, Outcome.DISAGREES])
def test_what_did_not_fail_is_done(tmp_path: Path, outcome: Outcome) -> None:
    """A finding is a result: it is not tried again."""
    suite = suite_of(tmp_path, _QUICK)
    with _open(suite, tmp_path / "run") as store:
        for name in _ids(suite):
            store.append(job_records(name, outcome=outcome))
    assert _carry_out(suite, tmp_path / "run", resume=True) == []


def test_another_suite_is_refused(tmp_path: Path) -> None:
    """A folder of another plan is never resumed, not even by force."""
    for force in (False, True):
        folder = tmp_path / f"run-{force}"
        _open(suite_of(tmp_path, _QUICK), folder).__exit__(None, None, None)
        with pytest.raises(PlanError) as caught:
            _open(suite_of(tmp_path, TINY), folder, resume=True, force=force)
        assert str(caught.value) == "The folder contains the run of another suite. Choose another --out."


def test_refused_resume_lets_go_of_the_folder(tmp_path: Path) -> None:
    """A refusal does not keep the folder locked for the rest of the process."""
    suite = suite_of(tmp_path, _QUICK)
    _open(suite, tmp_path / "run").__exit__(None, None, None)
    with pytest.raises(PlanError) as caught:
        _open(suite_of(tmp_path, TINY), tmp_path / "run", resume=True)
    assert "another suite" in str(caught.value)
    _open(suite, tmp_path / "run", resume=True).__exit__(None, None, None)


def test_refused_resume_writes_nothing(tmp_path: Path) -> None:
    """The run of another suite keeps its cut line and its incomplete job, and gets no file."""
    folder = tmp_path / "run"
    with _open(suite_of(tmp_path, _QUICK), folder) as store:
        store.append(job_records("a", parts=2)[:1])
    records = folder / "records.jsonl"
    records.write_bytes(records.read_bytes() + b'{"cut')
    (folder / ".lock").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(PlanError) as caught:
        _open(suite_of(tmp_path, TINY), folder, resume=True)
    assert "another suite" in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def _pretend(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], machine: dict[str, str]) -> None:
    monkeypatch.setattr(run, "versions", lambda: versions)
    monkeypatch.setattr(run, "environment", lambda: machine)


_MACHINE = {"cpu": "a", "cores": "2", "os": "linux", "python": "3.11"}


@pytest.mark.parametrize(
    ("versions", "machine", "changed"),
    [
        ({"torch": "2"}, _MACHINE, "torch"),
        ({"torch": "1", "openvino": "1"}, _MACHINE, "openvino"),
        ({"torch": "1"}, {**_MACHINE, "cpu": "b", "cores": "4"}, "cpu, cores"),
        ({"torch": "2"}, {**_MACHINE, "python": "3.12"}, "torch, python"),
    ],
    ids=["version", "new-package", "machine", "both"],
)
def test_changed_versions_or_machine_are_refused_unless_forced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    versions: dict[str, str],
    machine: dict[str, str],
    changed: str,
) -> None:
    """Figures of two machines or versions are not mixed unless the user requests it."""
    suite = suite_of(tmp_path, _QUICK)
    _pretend(monkeypatch, {"torch": "1"}, _MACHINE)
    _open(suite, tmp_path / "run").__exit__(None, None, None)
    _open(suite, tmp_path / "forced").__exit__(None, None, None)
    _pretend(monkeypatch, versions, machine)
    with pytest.raises(PlanError) as caught:
        _open(suite, tmp_path / "run", resume=True)
    assert str(caught.value) == (
        f"{changed} changed since the run was started, so its figures would not be comparable. "
        "Start a new run, or resume with --force."
    )
    _open(suite, tmp_path / "forced", resume=True, force=True).__exit__(None, None, None)


def test_package_that_is_gone_is_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that was there at the start and is not any more changed too."""
    suite = suite_of(tmp_path, _QUICK)
    _pretend(monkeypatch, {"torch": "1", "openvino": "1"}, _MACHINE)
    _open(suite, tmp_path / "run").__exit__(None, None, None)
    _pretend(monkeypatch, {"torch": "1"}, _MACHINE)
    with pytest.raises(PlanError, match=r"^openvino changed since the run was started"):
        _open(suite, tmp_path / "run", resume=True)


def test_unknown_runtime_is_found_before_anything_runs(tmp_path: Path) -> None:
    """A misspelt runtime is refused at once, and no folder is made."""
    suite = suite_of(tmp_path, _QUICK.replace('agreement = ["ort-cpu", "torch"]', 'agreement = ["ort-cpi"]'))
    with pytest.raises(RuntimeNotFoundError) as caught:
        _open(suite, tmp_path / "run")
    assert str(caught.value) == (
        "There is no runtime 'ort-cpi'. Did you mean 'ort-cpu'? `sdpa-onnx runtimes` lists them."
    )
    assert not (tmp_path / "run").exists()


def test_unknown_target_is_found_before_anything_runs(tmp_path: Path) -> None:
    """A misspelt target is refused at once, and no folder is made."""
    suite = suite_of(tmp_path, _QUICK.replace('"sdpa"', '"encoder-slf"'))
    with pytest.raises(PlanError) as caught:
        _open(suite, tmp_path / "run")
    assert str(caught.value) == "'encoder-slf' is not a target. Did you mean 'encoder-self'?"
    assert not (tmp_path / "run").exists()


def test_reference_is_not_timed(tmp_path: Path) -> None:
    """A runtime that is slow by design cannot be in `timing`."""
    text = _QUICK.replace('timing = ["ort-cpu", "torch"]', 'timing = ["torch", "onnx-reference"]')
    with pytest.raises(PlanError) as caught:
        _open(suite_of(tmp_path, text), tmp_path / "run")
    assert str(caught.value) == "Runtime 'onnx-reference' is for agreement only. Remove it from 'timing'."


def test_newest_run_is_found(tmp_path: Path) -> None:
    """--resume without --out uses the newest run of the suite, and no folder without a run.json."""
    for name in ("quick-20260101T000000Z", "quick-20260301T000000Z", "other-20260401T000000Z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "quick-20260501T000000Z").mkdir()
    assert latest_folder("quick", tmp_path) == tmp_path / "quick-20260301T000000Z"
    assert latest_folder("some/where/other.toml", tmp_path) == tmp_path / "other-20260401T000000Z"
    with pytest.raises(PlanError) as caught:
        latest_folder("ci", tmp_path)
    assert str(caught.value) == (f"There is no run of 'ci' in {tmp_path} to resume. Start one without --resume.")


def test_new_folder_sorts_by_time(tmp_path: Path) -> None:
    """A run folder is named after its suite and the time in UTC."""
    folder = new_folder("some/where/tiny.toml", tmp_path)
    assert folder.parent == tmp_path
    assert folder.name.startswith("tiny-2")
    assert folder.name.endswith("Z")
    assert len(folder.name) == len("tiny-20261129T134500Z")


def test_watcher_hears_what_is_left(tmp_path: Path) -> None:
    """The start is reported with the remaining jobs, not with those that are done."""
    suite = suite_of(tmp_path, _QUICK)
    with _open(suite, tmp_path / "run") as store:
        for name in _ids(suite)[:-1]:
            store.append(job_records(name))
        heard: list[Job] = []
        run_jobs(suite, store, RunObserver(on_start=heard.extend))
    assert heard == plan(suite)[-1:]


def _with_deadline(suite: Suite, folder: Path, deadline: Deadline, *, resume: bool = False) -> None:
    with _open(suite, folder, resume=resume) as store:
        run_jobs(suite, store, RunObserver(), deadline=deadline)


def _reaching(jobs: int) -> Deadline:
    """A deadline that passes when it has been asked as often as so many shared jobs ask."""
    asked = itertools.count()
    return Deadline(budget_seconds=1e3, now=lambda: 0.0 if next(asked) < jobs else 1e6, start=0.0)


def test_what_a_budget_does_not_reach_is_skipped_and_done_later(tmp_path: Path) -> None:
    """Cells beyond the budget are skipped with that reason, the run is not finished, and resuming it does them."""
    suite = suite_of(tmp_path, _QUICK)
    _with_deadline(suite, tmp_path / "run", _reaching(2))
    header, records = read_run(tmp_path / "run")
    assert [(record.outcome, record.reason) for record in records] == [
        (Outcome.OK, ""),
        (Outcome.OK, ""),
        (Outcome.SKIPPED, "budget"),
        (Outcome.SKIPPED, "budget"),
    ]
    assert (header.done_cells, header.planned_cells, header.is_finished) == (2, 4, False)
    assert exit_code(records, None) == 0
    assert _carry_out(suite, tmp_path / "run", resume=True) == _ids(suite)[2:]
    header, records = read_run(tmp_path / "run")
    assert {record.outcome for record in records} == {Outcome.OK}
    assert header.is_finished


def test_timing_that_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    """A timing that would end after the deadline is skipped, while what may be ended at any time is begun."""
    suite = suite_of(tmp_path, _QUICK)
    _with_deadline(suite, tmp_path / "run", Deadline(budget_seconds=0.1, now=lambda: 0.0, start=0.0))
    _, records = read_run(tmp_path / "run")
    assert [record.outcome for record in records] == [Outcome.OK] * 3 + [Outcome.SKIPPED]


def test_header_has_the_seconds_by_kind(tmp_path: Path) -> None:
    """run.json has the time of each kind of job, and of all; a resumed run adds its own."""
    suite = suite_of(tmp_path, _QUICK)
    _with_deadline(suite, tmp_path / "run", _reaching(2))
    before, _ = read_run(tmp_path / "run")
    _carry_out(suite, tmp_path / "run", resume=True)
    after, _ = read_run(tmp_path / "run")
    assert set(after.kind_seconds) == {"export", "agreement", "time"}
    assert after.kind_seconds["export"] == before.kind_seconds["export"]
    assert after.kind_seconds["agreement"] > before.kind_seconds["agreement"]
    assert (after.elapsed_seconds or 0.0) > (before.elapsed_seconds or 0.0) > 0.0


def test_records_of_a_finished_run_are_in_the_order_of_the_plan(tmp_path: Path) -> None:
    """Whatever ends first, a finished run lists its jobs as planned."""
    suite = suite_of(tmp_path, TINY.replace("0.3", "0.02").replace("0.05", "0.002"))
    with _open(suite, tmp_path / "run") as store:
        for name in _ids(suite)[::-1][:4]:
            store.append(job_records(name))
    _carry_out(suite, tmp_path / "run", resume=True)
    _, records = read_run(tmp_path / "run")
    assert list(dict.fromkeys(record.job for record in records)) == _ids(suite)
