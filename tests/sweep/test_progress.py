"""The time left of a run: known from the start, right for a recorded run, and never at its end before the work is."""

import heapq
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.cli.run import TRUSTED_SECONDS
from sdpa_onnx.sweep.job_text import elapsed_share, job_kind, job_words
from sdpa_onnx.sweep.lanes import job_groups
from sdpa_onnx.sweep.plan import Job, SharedJob, TimingJob, plan
from sdpa_onnx.sweep.suite import load_suite

_FACTOR = 1.5


class _RecordedRun(msgspec.Struct, frozen=True):
    """Seconds of a real run of the suite quick.

    Args:
        origin: Where and how they were measured.
        elapsed_seconds: Of all jobs.
        workers: Lanes of the jobs that share the machine.
        shared_seconds: By kind of job, added over the lanes.
        timing_seconds: Of each timing.
    """

    origin: str
    elapsed_seconds: float
    workers: int
    shared_seconds: dict[str, float]
    timing_seconds: dict[str, float]


def test_time_left_is_known_before_anything_is_done() -> None:
    """The first estimate is the expectation; without trust in it nothing is known."""
    assert Progress(100.0, now=lambda: 0.0, trusted_seconds=30.0).seconds_left() == 100.0
    assert Progress(100.0, now=lambda: 0.0).seconds_left() is None


def test_time_left_never_ends_before_the_work() -> None:
    """A job that takes far longer than expected leaves the time of what follows."""
    clock = [0.0]
    progress = Progress(100.0, now=lambda: clock[0], trusted_seconds=30.0)
    clock[0] = 500.0
    assert progress.seconds_left() == pytest.approx(25.0)


@pytest.mark.parametrize("slowness", [1.0, 2.0])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_time_left_of_a_recorded_run_is_right(share: float, slowness: float) -> None:
    """At a quarter, half and three quarters of a run, within a factor of 1.5; also if all takes twice as long."""
    run = msgspec.json.decode((Path(__file__).parent / "quick_seconds.json").read_bytes(), type=_RecordedRun)
    jobs, total = plan(load_suite("quick")), slowness * run.elapsed_seconds
    clock = [0.0]
    progress = Progress(
        sum(elapsed_share(job, run.workers) for job in jobs), now=lambda: clock[0], trusted_seconds=TRUSTED_SECONDS
    )
    for seconds, job in _ends(jobs, run):
        if slowness * seconds > share * total:
            break
        clock[0] = slowness * seconds
        progress.advance(elapsed_share(job, run.workers))
    clock[0] = share * total
    left = progress.seconds_left()
    assert left is not None
    assert 1.0 / _FACTOR <= left / (total - clock[0]) <= _FACTOR


def _ends(jobs: list[Job], run: _RecordedRun) -> Iterator[tuple[float, Job]]:
    """When each job was done; of what shares the machine, a job takes the mean of its kind, as only sums are known."""
    shared: list[SharedJob] = [job for job in jobs if not isinstance(job, TimingJob)]
    number = Counter(map(job_kind, shared))
    lanes, ends = [0.0] * run.workers, list[tuple[float, int, Job]]()
    for group in job_groups(shared):
        start = heapq.heappop(lanes)
        for job in group:
            start += run.shared_seconds[job_kind(job)] / number[job_kind(job)]
            ends.append((start, len(ends), job))
        heapq.heappush(lanes, start)
    yield from ((seconds, job) for seconds, _, job in sorted(ends))
    # Between them and the timings, the ceilings of the machine are measured.
    seconds = run.elapsed_seconds - sum(run.timing_seconds.values())
    for job in jobs:
        if isinstance(job, TimingJob):
            seconds += run.timing_seconds[job_words(job)]
            yield seconds, job
