"""Worker processes for the launches of comparisons: new ones each time, or sets that serve many comparisons.

Starts, keeps and stops them; asks them nothing.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.runtimes.arm_job import ArmJob, KernelTimes, LoadTimes, RanFacts, Visit
from sdpa_onnx.runtimes.timing_worker import TimingWorker
from sdpa_onnx.runtimes.workers import WorkerFailedError

__all__ = [
    "PATIENCE_SECONDS",
    "TimedWorker",
    "WorkerFactory",
    "WorkerKey",
    "WorkerPool",
    "worker_keys",
    "workers_until",
]

# Longest wait for one answer: above one call of the slowest attention that anybody times.
PATIENCE_SECONDS = 600.0


class TimedWorker(Protocol):
    """The requests to a worker; see `timing_worker.TimingWorker`."""

    def wait_ready(self) -> None: ...
    def load(self, job: ArmJob, *, patience_seconds: float | None = None) -> LoadTimes: ...
    def visit(self, calls: int) -> Visit: ...
    def after_idle(self) -> float: ...
    def kernel_times(self, calls: int) -> KernelTimes: ...
    def ran(self, *, with_graph: bool = True) -> RanFacts: ...
    def outputs(self, path: Path) -> None: ...
    def unload(self) -> None: ...
    @property
    def cpu_seconds(self) -> float: ...
    def stop(self) -> None: ...


class WorkerFactory(Protocol):
    """Starts one process and returns at once, as the class `TimingWorker` does."""

    def __call__(
        self, engine: str, *, python: Path | None, threads: int, patience_seconds: float, runtime: str
    ) -> TimedWorker: ...


def workers_until(deadline: Deadline) -> WorkerFactory:
    """Starts processes whose answers are waited for until a deadline at most."""
    return functools.partial(TimingWorker, seconds_left=lambda: deadline.seconds_left)


class WorkerKey(NamedTuple):
    """Which process: what it imports and how it is pinned, which launch it serves, and which arm of it.

    The runtime is "" where the engine tells what is imported.
    """

    engine: str
    runtime: str
    python: Path | None
    threads: int
    launch: int
    role: int


def worker_keys(jobs: Mapping[str, ArmJob], launch: int) -> dict[str, WorkerKey]:
    """The process of every arm of a launch; arms that import the same have different roles."""
    roles: Counter[tuple[object, ...]] = Counter()
    keys = {}
    for name, job in jobs.items():
        kind = (job.engine, "" if job.engine else job.runtime, job.python, job.threads)
        keys[name] = WorkerKey(*kind, launch, roles[kind])
        roles[kind] += 1
    return keys


class WorkerPool:
    """The worker processes of one or many comparisons; a context manager that stops them all.

    Args:
        fresh: True: every launch of every comparison has new processes, as METHOD B.4 asks. False: launch k is always
            served by set k, so that imports are paid once; the launches of one comparison are still different
            processes, and those of two comparisons the same.
        patience_seconds: Longest wait for one answer of a worker.
        start: How one is started.
    """

    def __init__(
        self, *, fresh: bool = True, patience_seconds: float = PATIENCE_SECONDS, start: WorkerFactory = TimingWorker
    ) -> None:
        self.is_fresh = fresh
        self._patience_seconds = patience_seconds
        self._start = start
        self._idle: dict[WorkerKey, TimedWorker] = {}
        self._busy: dict[WorkerKey, TimedWorker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for workers in (self._busy, self._idle):
            while workers:
                workers.popitem()[1].stop()

    def take(self, key: WorkerKey) -> TimedWorker:
        """The process of that key: the kept one, or a new one that is still importing.

        Raises:
            WorkerFailedError: If it cannot be started.
        """
        worker = self._idle.pop(key, None) or self._start(
            key.engine,
            python=key.python,
            threads=key.threads,
            patience_seconds=self._patience_seconds,
            runtime=key.runtime,
        )
        self._busy[key] = worker
        return worker

    def give_back(self, key: WorkerKey, *, failed: bool = False) -> None:
        """Keep the process for the next comparison, or end it.

        Args:
            key: It.
            failed: Whether it is of no more use.
        """
        worker = self._busy.pop(key, None)
        if worker is None:
            return
        if self.is_fresh or failed:
            worker.stop()
            return
        try:
            worker.unload()
        except WorkerFailedError:
            worker.stop()
            return
        self._idle[key] = worker

    @contextlib.contextmanager
    def lend(self, job: ArmJob, *, patience_seconds: float | None = None) -> Iterator[tuple[TimedWorker, LoadTimes]]:
        """Give a process with a job loaded, and what loading took, for as long as a with block lasts.

        Args:
            job: What is loaded.
            patience_seconds: Longest wait for that; None = as for every answer.

        Raises:
            WorkerFailedError: As every question to it; the process is ended then.
        """
        (key,) = worker_keys({"": job}, launch=0).values()
        failed = True
        try:
            worker = self.take(key)
            yield worker, worker.load(job, patience_seconds=patience_seconds)
            failed = False
        finally:
            self.give_back(key, failed=failed)

    def cpu_seconds(self) -> float:
        """CPU time of all its processes that live."""
        return sum(worker.cpu_seconds for worker in [*self._busy.values(), *self._idle.values()])
