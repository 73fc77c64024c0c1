"""Lanes: worker processes that carry out the jobs of a run side by side, each a group of jobs at a time.

A group is what shares graphs and oracles, so its jobs run one after the other in one process. Writes nothing: results
go to the caller as they come. A job that ends its process is a failed record, and the lane goes on with a new process.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sdpa_onnx.errors import NoAnswerError, SessionError
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.sweep.job_carrier import JobCarrier, JobResult
from sdpa_onnx.sweep.job_text import failed_record, job_seconds
from sdpa_onnx.sweep.job_worker import carry_out, decode_result, encode_request
from sdpa_onnx.sweep.plan import SaturationJob, SharedJob
from sdpa_onnx.workflows.isolate.isolated_function import CallFailure, IsolatedFunction

__all__ = ["JobFinished", "JobStarted", "Lanes", "OneProcess", "WorkerLanes", "job_groups"]

# Longest wait for one job: far above the slowest of any suite, so that only a runtime that hangs meets it.
_PATIENCE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A lane has begun a job."""

    job: SharedJob


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A lane has a result."""

    job: SharedJob
    result: JobResult


LaneEvent = JobStarted | JobFinished


class Lanes(Protocol):
    """Carries out groups of jobs."""

    @property
    def count(self) -> int:
        """Processes side by side."""
        ...

    def events(self, groups: Sequence[Sequence[SharedJob]], deadline: Deadline) -> Iterator[LaneEvent]:
        """Carry out groups; yield as jobs begin and end. Jobs that the deadline does not reach have no event."""
        ...


@dataclass(frozen=True, slots=True)
class OneProcess:
    """This process instead of lanes: one job after the other."""

    carrier: JobCarrier = field(default_factory=JobCarrier)
    count: int = 1

    def events(self, groups: Sequence[Sequence[SharedJob]], deadline: Deadline) -> Iterator[LaneEvent]:
        """See `Lanes.events`; a job that has begun is finished."""
        for job in (job for group in groups for job in group):
            if deadline.is_past:
                return
            yield JobStarted(job)
            yield JobFinished(job, self.carrier.result(job))


def job_groups(jobs: Sequence[SharedJob]) -> list[tuple[SharedJob, ...]]:
    """Jobs that share graphs and oracles, in their order; the group that takes longest comes first.

    All graphs of one attention are a group: its opsets and forms have the same inputs, hence the same oracles.
    """
    groups: dict[object, list[SharedJob]] = {}
    for job in jobs:
        key: object = job
        if not isinstance(job, SaturationJob):
            key = (job.model.target, job.model.spec, job.model.dtype)
        groups.setdefault(key, []).append(job)
    return sorted(map(tuple, groups.values()), key=lambda group: -sum(map(job_seconds, group)))


class WorkerLanes:
    """Lanes of worker processes in our own environment, each started once.

    Args:
        count: Lanes.
        threads: Threads inside one operator, set before anything is imported.
        folder: Where they share graphs.
        function: What a worker calls for each job; see `job_worker.carry_out`.
    """

    def __init__(
        self, *, count: int, threads: int, folder: Path, function: Callable[[bytes], bytes] = carry_out
    ) -> None:
        self.count = count
        self._function = function
        self._threads = threads
        self._folder = folder

    def events(self, groups: Sequence[Sequence[SharedJob]], deadline: Deadline) -> Iterator[LaneEvent]:
        """See `Lanes.events`; processes that are still busy at the deadline are ended.

        Raises:
            RuntimeUnavailableError: If no process starts.
            FolderError: If a process can write nothing.
        """
        work = _LaneWork(groups=deque(groups), folder=self._folder, threads=self._threads, function=self._function)
        with work.lanes(min(self.count, len(groups))) as lanes:
            left = lanes
            while left:
                try:
                    event = work.news.get(timeout=_or_none(deadline.seconds_left))
                except queue.Empty:
                    return
                if event is None:
                    left -= 1
                elif isinstance(event, BaseException):
                    raise event
                else:
                    yield event


@dataclass(slots=True)
class _LaneWork:
    """What the threads of the lanes share: the groups that are left, and what they report.

    None among the news: a lane has ended. An exception ends the run.
    """

    groups: deque[Sequence[SharedJob]]
    folder: Path
    threads: int
    function: Callable[[bytes], bytes]
    news: "queue.SimpleQueue[LaneEvent | BaseException | None]" = field(default_factory=queue.SimpleQueue)
    is_stopped: threading.Event = field(default_factory=threading.Event)
    workers: list[IsolatedFunction] = field(default_factory=list)

    @contextmanager
    def lanes(self, count: int) -> Iterator[int]:
        """Run lanes for as long as a with block lasts; at its end no process of them is left."""
        threads = [threading.Thread(target=self._lane, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield count
        finally:
            self.is_stopped.set()
            while any(thread.is_alive() for thread in threads):
                for worker in list(self.workers):
                    worker.kill()
                threads[0].join(0.01)
                threads = [thread for thread in threads if thread.is_alive()]

    def _lane(self) -> None:
        """One lane: its process ends with this thread."""
        try:
            with IsolatedFunction(self.function, who="The worker process", threads=self.threads, attempts=1) as worker:
                self.workers.append(worker)
                while group := self._next_group():
                    for job in group:
                        self._carry_out(job, worker)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the caller
            self.news.put(error)
        self.news.put(None)

    def _next_group(self) -> Sequence[SharedJob]:
        try:
            return () if self.is_stopped.is_set() else self.groups.popleft()
        except IndexError:
            return ()

    def _carry_out(self, job: SharedJob, worker: IsolatedFunction) -> None:
        if self.is_stopped.is_set():
            return
        self.news.put(JobStarted(job))
        reply = worker.call(encode_request(job, self.folder), patience_seconds=_PATIENCE_SECONDS)
        if self.is_stopped.is_set() and isinstance(reply, CallFailure):
            return  # we ended it ourselves
        if isinstance(reply, CallFailure):
            error = NoAnswerError(reply.reason) if reply.is_timeout else SessionError(reply.reason)
            self.news.put(JobFinished(job, JobResult(records=(failed_record(job, error),))))
        else:
            self.news.put(JobFinished(job, decode_result(reply.data)))


def _or_none(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds
