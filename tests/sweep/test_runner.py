"""One job's failure is a record; the other jobs go on."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Outcome, Record, TimingRecord, Verdict
from sdpa_onnx.errors import FolderError, SessionError
from sdpa_onnx.sweep import models as sweep_models
from sdpa_onnx.sweep.models import ModelCache
from sdpa_onnx.sweep.plan import Job, job_id, plan
from sdpa_onnx.sweep.runner import Runner
from sdpa_onnx.sweep.store import Store, read_run
from sdpa_onnx.sweep.suite import Suite
from tests.measure.fake_workers import FakeArm, FakeMachine
from tests.sweep.fakes import Absent, Faulty, Refusing, Throwing, plant
from tests.sweep.suites import FULL_DISK_HINT, HEADER, TINY, suite_of

# Exported once for all tests that do not test it.
_MODELS = ModelCache()
# One export, one agreement each on two runtimes, one timing.
_SMALL = TINY.replace("is_causal = [false, true]\n", "").replace("0.3", "0.02").replace("0.05", "0.002")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return suite_of(tmp_path_factory.mktemp("suite"), _SMALL)


def _ignore(*told: object) -> None:
    pass


def _run(
    suite: Suite, folder: Path, models: ModelCache | None = None, machine: FakeMachine | None = None
) -> tuple[list[Record], list[tuple[str, bool]]]:
    """Carry out the whole plan, timings on fake workers; the stored records, and the report after each job."""
    told: list[tuple[str, bool]] = []
    with Store.create(folder, HEADER) as store, (machine or FakeMachine()).pool(fresh=False) as pool:
        runner = Runner(
            store=store,
            pool=pool,
            on_job=_ignore,
            on_done=lambda job, well: told.append((type(job).__name__, well)),
            models=_MODELS if models is None else models,
        )
        runner.share(plan(suite))
        runner.time(plan(suite))
    return read_run(folder)[1], told


def _outcomes(records: list[Record]) -> list[tuple[str, str, str, str]]:
    return [(type(record).__name__, record.runtime, record.outcome.value, record.reason) for record in records]


def test_all_well(suite: Suite, tmp_path: Path) -> None:
    """Every job writes its records with its id, part count and a cell of its own."""
    records, told = _run(suite, tmp_path / "run")
    assert _outcomes(records) == [
        ("ExportRecord", "", "ok", ""),
        ("AgreementRecord", "ort-cpu", "ok", ""),
        ("AgreementRecord", "torch", "ok", ""),
        ("TimingRecord", "ort-cpu", "ok", ""),
        ("TimingRecord", "torch", "ok", ""),
    ]
    assert [record.job for record in records] == [job_id(job) for job in plan(suite)] + [job_id(plan(suite)[-1])]
    assert [record.parts for record in records] == [1, 1, 1, 2, 2]
    assert len({record.cell for record in records}) == 5
    assert told == [("ExportJob", True), ("AgreementJob", True), ("AgreementJob", True), ("TimingJob", True)]


def test_graph_and_samples_are_kept(suite: Suite, tmp_path: Path) -> None:
    """The record names the graph by its content and its raw samples, which give its figures again."""
    folder = tmp_path / "run"
    records, _ = _run(suite, folder)
    (export,) = [record for record in records if isinstance(record, ExportRecord)]
    assert (folder / export.model).stat().st_size > 0
    for record in records:
        if isinstance(record, TimingRecord):
            with np.load(folder / record.samples) as archive:
                wall = archive["wall_seconds"]
            assert (record.launches, record.blocks, record.calls) == (*wall.shape[:2], wall.size)
            assert record.wall_min_seconds == wall.min()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ZeroDivisionError("boom"), "ZeroDivisionError: boom"),
        (MemoryError(), "MemoryError: "),
        (OSError(errno.ENOENT, "No such file"), "FileNotFoundError: [Errno 2] No such file"),
        (SessionError("torch cannot load the model.", hint="Really."), "torch cannot load the model. Really."),
        (AssertionError("not so"), "AssertionError: not so"),
    ],
    ids=["any", "memory", "os", "ours", "assertion"],
)
def test_runtime_that_throws_fails_its_jobs_alone(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """Whatever a runtime throws becomes the reason of its own records; the others are carried out."""
    plant(monkeypatch, Throwing(name="torch", error=error))
    records, told = _run(suite, tmp_path / "run")
    assert _outcomes(records)[:3] == [
        ("ExportRecord", "", "ok", ""),
        ("AgreementRecord", "ort-cpu", "ok", ""),
        ("AgreementRecord", "torch", "failed", reason),
    ]
    assert [well for _, well in told] == [True, True, False, True]  # a timing asks a process of its own
    assert all(record.job and record.cell for record in records)


def test_arm_that_throws_does_not_take_the_other_arms_with_it(suite: Suite, tmp_path: Path) -> None:
    """If one arm of a comparison fails, its record has the arm and the reason, and ratios refer to another."""
    machine = FakeMachine(arms={"torch": FakeArm(fails=dict.fromkeys(range(99), "load"))})
    records, told = _run(suite, tmp_path / "run", machine=machine)
    timed = [record for record in records if isinstance(record, TimingRecord)]
    assert [(record.runtime, record.outcome, record.reason) for record in timed] == [
        ("ort-cpu", Outcome.OK, ""),
        ("torch", Outcome.FAILED, "model0 crashed at load."),
    ]
    assert timed[0].warnings == ("The baseline torch failed, so ratios refer to ort-cpu attention 23.",)
    assert (timed[0].samples != "", timed[1].samples, told[-1]) == (True, "", ("TimingJob", False))


def test_absent_runtime_is_skipped(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime whose package is missing is skipped with what to install, and all is well."""
    plant(monkeypatch, Absent(name="torch"))
    records, told = _run(suite, tmp_path / "run")
    reason = "fake is missing: pip install fake"
    assert _outcomes(records) == [
        ("ExportRecord", "", "ok", ""),
        ("AgreementRecord", "ort-cpu", "ok", ""),
        ("AgreementRecord", "torch", "skipped", reason),
        ("TimingRecord", "ort-cpu", "ok", ""),
        ("TimingRecord", "torch", "skipped", reason),
    ]
    assert all(well for _, well in told)


def test_missing_baseline_is_replaced_by_an_arm_that_ran(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ratios never refer to an arm that was not timed."""
    plant(monkeypatch, Absent(name="torch"))
    records, _ = _run(suite, tmp_path / "run")
    (timed,) = [record for record in records if isinstance(record, TimingRecord) and record.outcome is Outcome.OK]
    assert (timed.arm, timed.baseline, timed.ratio) == ("ort-cpu attention 23", "ort-cpu attention 23", 1.0)


def test_refusing_runtime_is_unsupported(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that does not support the model is a finding with its reason, judged and timed alike."""
    plant(monkeypatch, Refusing(name="torch"))
    records, _ = _run(suite, tmp_path / "run")
    assert _outcomes(records)[2:] == [
        ("AgreementRecord", "torch", "unsupported", "fake has no such kernel"),
        ("TimingRecord", "ort-cpu", "ok", ""),
        ("TimingRecord", "torch", "unsupported", "fake has no such kernel"),
    ]


def test_nothing_to_time(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison without a single arm is its skipped records."""
    plant(monkeypatch, Absent(name="torch"), Absent(name="ort-cpu"))
    records, _ = _run(suite, tmp_path / "run")
    timed = [record for record in records if isinstance(record, TimingRecord)]
    assert [(record.runtime, record.outcome) for record in timed] == [
        ("ort-cpu", Outcome.SKIPPED),
        ("torch", Outcome.SKIPPED),
    ]


def test_wrong_output_disagrees(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that computes something else is reported after its job, with the proof in the record."""
    plant(monkeypatch, Faulty(name="torch", fault=lambda _, out: {name: 1.01 * array for name, array in out.items()}))
    records, told = _run(suite, tmp_path / "run")
    wrong = records[2]
    assert isinstance(wrong, AgreementRecord)
    assert (wrong.outcome, wrong.verdict) == (Outcome.DISAGREES, Verdict.WRONG)
    assert wrong.reason == wrong.diagnosis != ""
    assert wrong.max_bound_ratio > 1
    assert [well for _, well in told] == [True, True, False, True]


def test_export_that_fails_fails_what_needs_it(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that cannot be made fails its export and every job that needs it, each with the reason."""

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("no exporter")

    monkeypatch.setattr("sdpa_onnx.sweep.models.export_target", refuse)
    records, told = _run(suite, tmp_path / "run", ModelCache())
    assert {(record.outcome, record.reason) for record in records} == {(Outcome.FAILED, "RuntimeError: no exporter")}
    assert len(told) == 4


def test_interrupt_is_not_a_failure(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C stops the run; what was finished is stored, and the job at hand leaves nothing."""
    plant(monkeypatch, Throwing(name="torch", error=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        _run(suite, tmp_path / "run")
    assert [record.outcome for record in read_run(tmp_path / "run")[1]] == [Outcome.OK, Outcome.OK]


def test_full_disk_stops_the_run(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing can be written any more the run ends in one sentence; it is not a failed job."""

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "run"
    with Store.create(folder, HEADER) as store:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(FolderError) as caught:
            Runner(store=store, pool=FakeMachine().pool(), on_job=_ignore, on_done=_ignore).share(plan(suite)[1:2])
    assert str(caught.value) == f"Cannot write {folder}: No space left on device. {FULL_DISK_HINT}"
    assert read_run(folder)[1] == []


def test_full_disk_for_a_graph_stops_the_run(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where a graph is to be kept: the cell is not written off as failed."""

    def full(path: Path, data: bytes) -> None:
        raise FolderError(f"Cannot write {path.parent}: No space left on device.")

    monkeypatch.setattr("sdpa_onnx.sweep.store.replace_file", full)
    monkeypatch.setattr(Store, "write_header", _ignore)
    with pytest.raises(FolderError, match="No space left on device"):
        _run(suite, tmp_path / "run")


def test_each_graph_is_exported_once(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs of one model share one export."""
    made: list[object] = []
    export = sweep_models.export_target

    def count(*arguments: object, **options: object) -> object:
        made.append(arguments)
        return export(*arguments, **options)

    monkeypatch.setattr("sdpa_onnx.sweep.models.export_target", count)
    _run(suite, tmp_path / "run", ModelCache())
    assert len(made) == 1


def test_told_before_and_after_each_job(suite: Suite, tmp_path: Path) -> None:
    """Progress hears of every job once, in order, first before and then after it."""
    heard: list[tuple[str, str]] = []

    def before(job: Job) -> None:
        heard.append(("before", job_id(job)))

    def after(job: Job, well: bool) -> None:
        heard.append(("after", job_id(job)))

    with Store.create(tmp_path / "run", HEADER) as store:
        Runner(store=store, pool=FakeMachine().pool(), on_job=before, on_done=after).share(plan(suite)[:2])
    names = [job_id(job) for job in plan(suite)[:2]]
    assert heard == [("before", names[0]), ("after", names[0]), ("before", names[1]), ("after", names[1])]


def test_probes_are_asked_once_of_each_graph(tmp_path: Path) -> None:
    """With `probes = true` the first size of a graph has the probes behind its ladder, the other sizes have none."""
    text = _SMALL.replace("probes = false", "probes = true").replace('timing = ["ort-cpu", "torch"]\n', "")
    records, _ = _run(suite_of(tmp_path, f"{text}kv_seq_len = [5, 9]\n"), tmp_path / "run")
    judged = [record for record in records if isinstance(record, AgreementRecord)]
    assert {record.outcome for record in judged} == {Outcome.OK}
    for runtime in ("ort-cpu", "torch"):
        asked = [(record.job, record.inputs) for record in judged if record.runtime == runtime]
        assert [inputs for _, inputs in asked if not inputs.startswith("probe")] == ["spread 1"] * 2
        probes = [inputs for _, inputs in asked if inputs.startswith("probe")]
        assert len(probes) == len(set(probes)) > 5
        assert {job for job, inputs in asked if inputs.startswith("probe")} == {asked[0][0]}
