"""Run a plan: first what may share the machine, on all cores; then the timings, one at a time with nothing beside them.

A failing job becomes a record, and a kill loses at most the jobs at hand. With a broad except, like `job_carrier`:
whatever a runtime raises, the other jobs run.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from sdpa_onnx.core.attention.roofline import Ceilings
from sdpa_onnx.core.records.records import BUDGET_REASON, ExportRecord, Outcome, Record, TimingRecord, require_finite
from sdpa_onnx.core.timing.paired import Calibration, StoppingLook
from sdpa_onnx.errors import FolderError
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.measure.pool import WorkerPool
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.runtimes.base import Supported, Unsupported, get_runtime
from sdpa_onnx.sweep.job_carrier import JobCarrier, JobResult, check_options
from sdpa_onnx.sweep.job_text import failed_record, job_kind, job_seconds, skipped_arm, skipped_record
from sdpa_onnx.sweep.lanes import JobFinished, JobStarted, Lanes, OneProcess, job_groups
from sdpa_onnx.sweep.models import ModelCache
from sdpa_onnx.sweep.plan import Job, TimingJob, cell_id, job_id
from sdpa_onnx.sweep.store import Store
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME
from sdpa_onnx.workflows.timing.comparison import Arm, TimedComparison, bench

__all__ = ["Runner", "suite_looks"]

# Significance level of a comparison in a sweep, and the share of it that a first look may use.
# Source: METHOD B.4 (1 %, spent over the looks by Bonferroni, less in the earlier ones).
_ALPHA = 0.01
_FIRST_SHARE = 0.3


@dataclass(slots=True, kw_only=True)
class Runner:
    """Carries out jobs and writes their records into a store.

    Args:
        store: The store for records.
        pool: Workers for timings, kept for the whole run.
        on_job: Called before each job.
        on_done: Called after each job; True if all its records are ok or skipped.
        ceilings: Ceilings measured in this run.
        calibration: Difference between processes on this machine.
        models: The graphs that are timed.
        lanes: Carries out what may share the machine; None = this process, with the same graphs.
        deadline: When no more jobs are begun.
        seconds: Wall time of the jobs so far by kind, added over the lanes.
    """

    store: Store
    pool: WorkerPool
    on_job: Callable[[Job], None]
    on_done: Callable[[Job, bool], None]
    ceilings: Ceilings | None = None
    calibration: Calibration = field(default_factory=Calibration)
    models: ModelCache = field(default_factory=ModelCache)
    lanes: Lanes | None = None
    deadline: Deadline = field(default_factory=Deadline)
    seconds: dict[str, float] = field(default_factory=dict)
    # How much longer timings take than estimated.
    _slowness: float = field(default=1.0, init=False)

    def share(self, jobs: Sequence[Job]) -> None:
        """Carry out the jobs that may share the machine, and skip those that the deadline does not reach.

        Raises:
            FolderError: If a record cannot be written; no partial record is left.
        """
        shared = [job for job in jobs if not isinstance(job, TimingJob)]
        lanes = self.lanes or OneProcess(carrier=JobCarrier(models=self.models))
        done: set[str] = set()
        for event in lanes.events(job_groups(shared), self.deadline):
            match event:
                case JobStarted(job):
                    self.on_job(job)
                case JobFinished(job, result):
                    self._finish(job, self._kept(result), result.seconds)
                    done.add(job_id(job))
        self._skip([job for job in shared if job_id(job) not in done])

    def time(self, jobs: Sequence[Job]) -> None:
        """Carry out the timings, one after the other, and skip those that do not fit before the deadline.

        Raises:
            FolderError: If a record cannot be written; no partial record is left.
        """
        for job in jobs:
            if not isinstance(job, TimingJob):
                continue
            if not self.deadline.allows(self._slowness * job_seconds(job)):
                self._skip([job])
                continue
            self.on_job(job)
            start = time.monotonic()
            records = self._timed(job)
            seconds = time.monotonic() - start
            self._slowness = max(self._slowness, seconds / job_seconds(job))
            self._finish(job, records, seconds)

    def _finish(self, job: Job, records: Sequence[Record], seconds: float) -> None:
        """Write the records of a job with the ids of cells and job."""
        kind = job_kind(job)
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self._append(job, records)
        self.on_done(job, all(record.outcome in (Outcome.OK, Outcome.SKIPPED) for record in records))

    def _append(self, job: Job, records: Sequence[Record]) -> None:
        name = job_id(job)
        self.store.append(
            [
                msgspec.structs.replace(record, cell=record.cell or _cell(name, number), job=name, parts=len(records))
                for number, record in enumerate(records)
            ]
        )

    def _skip(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._append(job, [skipped_record(job, BUDGET_REASON)])

    def _kept(self, result: JobResult) -> Sequence[Record]:
        """The records of a job; its graph is written, and its record names the file."""
        if not result.graph:
            return result.records
        (record,) = result.records
        if not isinstance(record, ExportRecord):
            return result.records
        path = self.store.write_model(record.model.removeprefix("sha256:"), result.graph)
        return [msgspec.structs.replace(record, model=path)]

    def _timed(self, job: TimingJob) -> list[Record]:
        """Records of a timing; one that fails gives one failed record."""
        try:
            records = self._timing(job)
            for record in records:
                require_finite(record)
        except FolderError:
            raise  # nothing can be written
        except Exception as error:  # noqa: BLE001 - a runtime may raise anything; the other jobs must run
            return [failed_record(job, error)]
        return records

    def _timing(self, job: TimingJob) -> list[Record]:
        arms, skipped = self._arms(job)
        if not arms:
            return list(skipped)
        comparison = self._bench(job, arms)
        timed = []
        for number, (name, record) in enumerate(comparison.records.items()):
            cell = _cell(job_id(job), number)
            sample = comparison.samples.get(name)
            path = self.store.write_samples(cell, sample.arrays) if sample is not None else ""
            timed.append(msgspec.structs.replace(record, cell=cell, samples=path))
        return [*timed, *skipped]

    def _bench(self, job: TimingJob, arms: Sequence[Arm]) -> TimedComparison:
        names = [arm.name for arm in arms]
        return bench(
            arms,
            check_options(arms[0].model, job.case, (1.0,), job.seed, job.threads),
            target=job.case.target,
            baseline=job.baseline if job.baseline in names else names[0],
            plan=_plan(job, self.calibration, self.deadline),
            ceilings=self.ceilings,
            pool=self.pool,
        )

    def _arms(self, job: TimingJob) -> tuple[list[Arm], list[TimingRecord]]:
        """Arms that can run, and records of those that cannot."""
        arms: list[Arm] = []
        skipped: list[TimingRecord] = []
        for name in job.runtimes:
            runtime = get_runtime(name)
            available = runtime.available()
            # torch runs the module, so that all opsets are one arm.
            plain = [key for key in job.models if key.form is None]
            for key in plain[-1:] if name == MODULE_RUNTIME else job.models:
                if isinstance(available, Unsupported):
                    skipped.append(skipped_arm(job, name, Outcome.SKIPPED, available.reason))
                    break
                model = self.models.get(key)
                support = runtime.supports(model)
                arm = Arm(
                    name=name if name == MODULE_RUNTIME else f"{name} {model.facts.form} {key.opset}",
                    model=model,
                    runtime=runtime,
                )
                if isinstance(support, Supported):
                    arms.append(arm)
                else:
                    skipped.append(skipped_arm(job, arm.name, Outcome.UNSUPPORTED, support.reason))
        return arms, skipped


def _cell(job: str, number: int) -> str:
    return cell_id({"job": job, "record": number})


def _plan(job: TimingJob, calibration: Calibration, deadline: Deadline) -> TimingPlan:
    measure = job.measure
    return TimingPlan(
        looks=suite_looks(measure.first_launches, measure.launches),
        blocks=max(measure.blocks, measure.least_blocks),
        least_blocks=measure.least_blocks,
        visit_seconds=measure.visit_seconds,
        warm_up_seconds=measure.warm_up_seconds,
        budget_seconds=measure.budget_seconds,
        extras=False,
        calibration=calibration,
        deadline=deadline,
        seed=job.seed,
    )


def suite_looks(first: int | None, last: int) -> tuple[StoppingLook, ...]:
    """The looks of a comparison after so many launches; the first ends it only if every verdict is decided."""
    if first is None or first >= last:
        return (StoppingLook(launches=last, alpha=_ALPHA),)
    early = StoppingLook(launches=first, alpha=_FIRST_SHARE * _ALPHA)
    return (early, StoppingLook(launches=last, alpha=(1.0 - _FIRST_SHARE) * _ALPHA))
