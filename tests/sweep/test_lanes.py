"""Jobs side by side: the results of one process, each job once, and no process left behind."""

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sdpa_onnx.core.records.records import ExportRecord, Outcome, Record, SaturationRecord
from sdpa_onnx.errors import FolderError
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.sweep.job_carrier import JobCarrier, JobResult
from sdpa_onnx.sweep.lanes import JobFinished, JobStarted, OneProcess, WorkerLanes, job_groups
from sdpa_onnx.sweep.plan import ExportJob, SaturationJob, SharedJob, TimingJob, job_id, plan
from sdpa_onnx.sweep.suite import load_suite
from tests.sweep.lane_function import ENDLESS, FULL, KILLED, answer
from tests.sweep.suites import TINY, suite_of

_JOB = SaturationJob(head_dim=4, kv_seq_lens=(8,), scale_rules=(), sigma=1.0, rows=1, draws=4, seed=0, threads=1)
_NO_LIMIT = Deadline()
_PATIENCE_SECONDS = 60.0


def _jobs(*seeds: int) -> list[SharedJob]:
    return [replace(_JOB, seed=seed) for seed in seeds]


def _lanes(folder: Path, count: int = 2) -> WorkerLanes:
    return WorkerLanes(count=count, threads=1, folder=folder, function=answer)


def _results(events: Iterator[object]) -> dict[int, JobResult]:
    """Results by seed; a job that ends twice is an error."""
    found: dict[int, JobResult] = {}
    for event in events:
        if isinstance(event, JobFinished):
            assert event.job.seed not in found  # type: ignore[union-attr]
            found[event.job.seed] = event.result  # type: ignore[union-attr]
    return found


def _processes(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


def _is_gone(process: int) -> bool:
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_each_job_ends_once(tmp_path: Path) -> None:
    """All groups are carried out by two processes, every job once, and both processes are gone afterwards."""
    groups = [_jobs(*range(start, start + 3)) for start in (0, 10, 20, 30)]
    found = _results(_lanes(tmp_path).events(groups, _NO_LIMIT))
    assert {seed: result.records[0].case for seed, result in found.items()} == {
        job.seed: str(job.seed)  # type: ignore[union-attr]
        for job in itertools.chain(*groups)
    }
    assert 1 <= len(_processes(tmp_path)) <= 2
    assert all(map(_is_gone, _processes(tmp_path)))


def test_jobs_of_a_group_run_in_order_in_one_process(tmp_path: Path) -> None:
    """A group shares graphs and oracles, so one process has all of it."""
    events = [event.job.seed for event in _lanes(tmp_path).events([_jobs(3, 1, 2)], _NO_LIMIT)]  # type: ignore[union-attr]
    assert events == [3, 3, 1, 1, 2, 2]
    assert len(_processes(tmp_path)) == 1


def test_job_that_ends_its_process_fails_alone(tmp_path: Path) -> None:
    """The record has the reason, and the jobs after it run in a new process."""
    found = _results(_lanes(tmp_path, count=1).events([_jobs(1, KILLED, 2)], _NO_LIMIT))
    assert [found[seed].records[0].outcome for seed in (1, KILLED, 2)] == [Outcome.OK, Outcome.FAILED, Outcome.OK]
    assert found[KILLED].records[0].reason == (
        "The worker process was killed (SIGKILL) from outside, perhaps for memory."
    )
    assert len(_processes(tmp_path)) == 2


def test_full_disk_ends_the_run(tmp_path: Path) -> None:
    """What a worker cannot write ends the run in its sentence, not with a failed job."""
    with pytest.raises(FolderError) as caught:
        list(_lanes(tmp_path).events([_jobs(FULL)], _NO_LIMIT))
    assert str(caught.value) == "Cannot write it: No space left on device."


def test_interrupt_leaves_no_process(tmp_path: Path) -> None:
    """When the caller stops, as at Ctrl-C, processes that are busy are ended."""
    events = _lanes(tmp_path).events([_jobs(ENDLESS), _jobs(1)], _NO_LIMIT)
    finished = next(event for event in events if isinstance(event, JobFinished))
    assert finished.job.seed == 1  # type: ignore[union-attr]
    while len(_processes(tmp_path)) < 2:  # the endless job is at work
        time.sleep(0.01)
    events.close()  # type: ignore[attr-defined]
    assert all(map(_is_gone, _processes(tmp_path)))


def test_deadline_ends_what_is_at_work(tmp_path: Path) -> None:
    """At the deadline the finished jobs have results, and the others none; no process is left."""
    began = time.monotonic()

    def now() -> float:
        """Far beyond the deadline once the endless job is at work and the other one is done."""
        return began if len(_processes(tmp_path)) < 2 else began + 1e6

    deadline = Deadline(budget_seconds=_PATIENCE_SECONDS, now=now)
    groups = [_jobs(ENDLESS, 5), _jobs(*range(1, 4))]
    found = _results(_lanes(tmp_path).events(groups, deadline))
    assert not {ENDLESS, 5} & set(found)
    assert all(map(_is_gone, _processes(tmp_path)))


def test_one_process_begins_nothing_after_the_deadline() -> None:
    """In this process, too, a job that the deadline does not reach has no event."""
    past = Deadline(budget_seconds=1.0, now=lambda: 2.0, start=0.0)
    assert list(OneProcess().events([_jobs(1, 2)], past)) == []


def test_graphs_of_one_attention_are_one_group() -> None:
    """Opsets, forms, sizes and runtimes of one attention share oracles; no job is lost or doubled."""
    jobs: list[SharedJob] = [job for job in plan(load_suite("quick")) if not isinstance(job, TimingJob)]
    groups = job_groups(jobs)
    assert sorted(map(job_id, itertools.chain(*groups))) == sorted(map(job_id, jobs))
    specs = [{job.model.spec for job in group if not isinstance(job, SaturationJob)} for group in groups]
    assert all(len(found) <= 1 for found in specs)
    owners = [(job.model.target, job.model.spec) for group in groups for job in group[:1] if isinstance(job, ExportJob)]
    assert len(owners) == len(set(owners)) == 9


def _without_clock(record: Record) -> Record:
    return msgspec.structs.replace(record, seconds=0.0) if isinstance(record, ExportRecord) else record


@pytest.mark.slow
def test_records_of_lanes_are_those_of_one_process(tmp_path: Path) -> None:
    """Exports, agreements and saturation give the same records side by side and one after the other."""
    text = TINY.replace("probes = false", "probes = true").replace("[23]", "[18, 23]")
    text += "\n[saturation]\nhead_dim = [8]\nkv_seq_len = [16]\nmodule = false\n"
    jobs: list[SharedJob] = [job for job in plan(suite_of(tmp_path, text)) if not isinstance(job, TimingJob)]
    lanes = (OneProcess(carrier=JobCarrier()), WorkerLanes(count=2, threads=1, folder=tmp_path))
    serial, parallel = (
        {
            job_id(event.job): (tuple(map(_without_clock, event.result.records)), event.result.graph)
            for event in lane.events(job_groups(jobs), _NO_LIMIT)
            if isinstance(event, JobFinished)
        }
        for lane in lanes
    )
    assert serial == parallel
    assert len(serial) == len(jobs)
    assert {record.outcome for records, _ in serial.values() for record in records} == {Outcome.OK}
    assert any(isinstance(record, SaturationRecord) for records, _ in serial.values() for record in records)


def test_a_job_is_announced_before_its_result(tmp_path: Path) -> None:
    """Progress hears of a job when it begins."""
    events = list(_lanes(tmp_path).events([_jobs(1)], _NO_LIMIT))
    assert [type(event) for event in events] == [JobStarted, JobFinished]
