"""A run from start to end: folder, header, remaining jobs, finish.

Renders nothing; the report is rendered from the folder afterwards.
"""

import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import assert_never

from sdpa_onnx.core.attention.roofline import Ceilings
from sdpa_onnx.core.records.records import Record, is_beyond_budget
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.errors import PlanError, RecordFormatError, RuntimeUnavailableError
from sdpa_onnx.graph.files.held_folder import HeldFolder, remove_left_over
from sdpa_onnx.measure.calibration import load_calibration, machine_class
from sdpa_onnx.measure.ceilings import measure_ceilings
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.measure.environment import environment, versions
from sdpa_onnx.measure.machine_load import usable_cores
from sdpa_onnx.measure.pool import WorkerPool
from sdpa_onnx.runtimes.base import Unsupported, get_runtime
from sdpa_onnx.sweep.job_carrier import PROVING_RUNTIME
from sdpa_onnx.sweep.lanes import WorkerLanes
from sdpa_onnx.sweep.models import ModelCache
from sdpa_onnx.sweep.plan import (
    AgreementJob,
    ExportJob,
    Job,
    JobKind,
    SaturationJob,
    TimingJob,
    cell_id,
    job_id,
    plan,
)
from sdpa_onnx.sweep.runner import Runner
from sdpa_onnx.sweep.store import Store, complete_records, utc_timestamp
from sdpa_onnx.sweep.suite import Suite, cases

__all__ = ["RunObserver", "latest_folder", "new_folder", "open_run", "run_jobs", "usable_workers"]

# What must be unchanged to resume a run, besides the versions of packages.
_COMPARED = ("cpu", "cores", "os", "python")
# Each worker needs up to a gigabyte, and the jobs of one case, which run in one worker, are seldom shared by more.
_MOST_WORKERS = 8
# Changed files and weights that are named.
_MOST_NAMED = 3


def _ignore(*progress: object) -> None:
    """Show no progress."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunObserver:
    """Callbacks for progress: the remaining jobs at the start, then each job before and after it runs."""

    on_start: Callable[[list[Job]], None] = _ignore
    on_job: Callable[[Job], None] = _ignore
    on_done: Callable[[Job, bool], None] = _ignore


def open_run(  # what the command line may choose
    suite: Suite,
    folder: Path,
    *,
    command: str,
    resume: bool,
    force: bool,
    skipped_kinds: tuple[JobKind, ...] = (),
    budget_seconds: float | None = None,
) -> Store:
    """Start a run in a new folder, or resume the run in the folder.

    Args:
        suite: What to run.
        folder: The run folder.
        command: The command line that repeats the run.
        resume: Resume the run in the folder.
        force: Resume even if the machine or versions changed.
        skipped_kinds: Kinds of jobs that the suite lacks because the command left them out.
        budget_seconds: Time limit of the command.

    Raises:
        PlanError: If a runtime or target does not exist, or the folder contains the run of another plan.
        RuntimeUnavailableError: If the runtime that proves every export is missing.
        FolderError: If the folder cannot be written.
    """
    by_target = _checked_names(suite)
    contents = {name: content for found in by_target.values() for name, content in found.items()}
    _check_proofs()
    planned = plan(suite)
    header = RunHeader(
        suite=suite.name,
        plan_hash=cell_id([job_id(job) for job in planned]),
        started=utc_timestamp(),
        command=command,
        environment=environment(),
        versions=versions(),
        threads=suite.threads,
        seed=suite.seed,
        calibration=load_calibration().figures,
        planned_cells=len(planned),
        skipped_kinds=tuple(map(str, skipped_kinds)),
        budget_seconds=budget_seconds,
        contents=contents,
    )
    if not resume:
        return Store.create(folder, header)
    store = Store.resume(folder, check=lambda stored: _check_same(stored, header, force=force))
    try:
        _reopen_changed(store, planned, by_target)
    except BaseException:
        store.close()
        raise
    return store


def run_jobs(
    suite: Suite, store: Store, watcher: RunObserver, *, workers: int = 0, deadline: Deadline | None = None
) -> None:
    """Carry out the remaining jobs of a run.

    Args:
        suite: What to run.
        store: Of the run.
        watcher: Hears of the jobs.
        workers: Processes for jobs that may share the machine; 0 = they run in this process, one after the other.
        deadline: When no more jobs are begun; those that are left are skipped.

    Raises:
        FolderError: If the folder can no longer be written.
        RuntimeUnavailableError: If no worker process starts.
    """
    planned = plan(suite)
    done = _finished_jobs(complete_records(store.folder))
    left = [job for job in planned if job_id(job) not in done]
    watcher.on_start(left)
    start = time.monotonic()
    with ExitStack() as stack:
        remove_left_over()
        folder = Path(stack.enter_context(HeldFolder("run")).name)
        runner = Runner(
            store=store,
            pool=stack.enter_context(WorkerPool(fresh=False)),
            on_job=watcher.on_job,
            on_done=watcher.on_done,
            calibration=_calibration(store.header),
            lanes=WorkerLanes(count=workers, threads=suite.threads, folder=folder) if workers else None,
            deadline=deadline or Deadline(),
            models=ModelCache(folder=folder if workers else None),
        )
        try:
            runner.share(left)
            if any(isinstance(job, TimingJob) for job in left):
                runner.ceilings = _measured_ceilings(store, suite.threads)
                runner.time(left)
        finally:
            _note_seconds(store, runner.seconds, elapsed=time.monotonic() - start, workers=max(workers, 1))
    records = complete_records(store.folder)
    finished = len({record.job for record in records if not is_beyond_budget(record)})
    store.arrange([job_id(job) for job in planned])
    store.write_header(dataclasses.replace(store.header, finished=utc_timestamp(), done_cells=finished))


def usable_workers(threads: int) -> int:
    """How many jobs may run side by side on this machine, each with so many threads."""
    return min(max(len(usable_cores()) // threads, 1), _MOST_WORKERS)


def _measured_ceilings(store: Store, threads: int) -> Ceilings | None:
    """The ceilings of this run, measured now if it has none: nothing else of ours runs."""
    if not store.header.ceilings:
        measured = measure_ceilings(threads=threads)
        store.write_header(dataclasses.replace(store.header, ceilings=dataclasses.asdict(measured)))
    return _ceilings(store.header)


def _note_seconds(store: Store, seconds: Mapping[str, float], *, elapsed: float, workers: int) -> None:
    """Add the time of these jobs to that of the parts of the run before."""
    before = store.header
    total = {kind: before.kind_seconds.get(kind, 0.0) + seconds.get(kind, 0.0) for kind in map(str, JobKind)}
    store.write_header(
        dataclasses.replace(
            before,
            kind_seconds={kind: round(spent, 3) for kind, spent in total.items() if spent},
            elapsed_seconds=round((before.elapsed_seconds or 0.0) + elapsed, 3),
            workers=workers,
        )
    )


def _ceilings(header: RunHeader) -> Ceilings | None:
    """The ceilings measured in this run, or None if there are none.

    Raises:
        RecordFormatError: If run.json has unknown ceilings.
    """
    if not header.ceilings:
        return None
    try:
        return Ceilings(**header.ceilings)
    except TypeError as error:
        raise RecordFormatError(f"run.json: unknown ceilings {', '.join(header.ceilings)}.") from error


def _calibration(header: RunHeader) -> Calibration:
    """The calibration at the start of the run, or the default in runs of earlier versions.

    Raises:
        RecordFormatError: If run.json has unknown figures.
    """
    try:
        return Calibration(**header.calibration, machine=machine_class()) if header.calibration else Calibration()
    except TypeError as error:
        raise RecordFormatError(f"run.json: unknown calibration figures {', '.join(header.calibration)}.") from error


def new_folder(suite_name: str, reports: Path) -> Path:
    """A folder name that sorts by time: reports/quick-20261129T134500Z."""
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    return reports / f"{Path(suite_name).stem}-{stamp}"


def latest_folder(suite_name: str, reports: Path) -> Path:
    """The newest run of a suite.

    Raises:
        PlanError: If there is none.
    """
    stem = Path(suite_name).stem
    runs = sorted(path.parent for path in reports.glob(f"{stem}-*/run.json"))
    if not runs:
        raise PlanError(f"There is no run of '{stem}' in {reports} to resume.", hint="Start one without --resume.")
    return runs[-1]


def _finished_jobs(records: list[Record]) -> set[str]:
    """Jobs that need not run again: all except those with a failed record or beyond the budget."""
    open_jobs = {record.job for record in records if record.outcome.is_failure or is_beyond_budget(record)}
    return {record.job for record in records} - open_jobs


def _reopen_changed(store: Store, planned: Sequence[Job], by_target: Mapping[str, Mapping[str, str]]) -> None:
    """Remove the records of every target whose code or weights changed, so that its jobs run again.

    What only one of both runs has is no change: a part that was imported later, or a run of an earlier version.
    """
    stored = store.header.contents
    changed = {
        target: [name for name, content in contents.items() if stored.get(name, content) != content]
        for target, contents in by_target.items()
    }
    stale = {job_id(job) for job in planned if changed.get(_target_of(job))}
    finished = {record.job for record in complete_records(store.folder)}
    again = finished & stale
    if again:
        names = dict.fromkeys(name for found in changed.values() for name in found)
        count = f"{len(again)} of {len(finished)} finished cells run{'s' if len(again) == 1 else ''} again"
        store.reruns = f"{count}, because {_listed(list(names))} changed since the run was started."
        store.forget(again)
    contents = {**stored, **{name: content for found in by_target.values() for name, content in found.items()}}
    if contents != stored:  # only now: a kill before leaves the change to be found once more
        store.write_header(dataclasses.replace(store.header, contents=contents, finished=None))


def _target_of(job: Job) -> str:
    match job:
        case ExportJob() | AgreementJob():
            return job.model.target
        case TimingJob():
            return job.case.target
        case SaturationJob():
            return ""
        case _:
            assert_never(job)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def _checked_names(suite: Suite) -> dict[str, dict[str, str]]:
    """Check names of runtimes and targets first, so that a misspelt name does not fail after an hour.

    Returns:
        The content of each target as checksums, see `target_content`.
    """
    for name in dict.fromkeys([*suite.agreement, *suite.timing]):
        get_runtime(name)
    for name in suite.timing:
        if not get_runtime(name).measures_time:
            raise PlanError(f"Runtime '{name}' is for agreement only.", hint="Remove it from 'timing'.")
    targets = dict.fromkeys(case.target for case in cases(suite) if case.spec is None)
    contents: dict[str, dict[str, str]] = {}
    if targets:
        from sdpa_onnx.torch_export.target_content import target_content
        from sdpa_onnx.torch_export.targets import resolve_target

        for target in targets:
            contents[target] = target_content(target, resolve_target(target))
    return contents


def _check_proofs() -> None:
    """Check that exports can be proved before the folder is created."""
    available = get_runtime(PROVING_RUNTIME).available()
    if isinstance(available, Unsupported):
        raise RuntimeUnavailableError(f"Runtime '{PROVING_RUNTIME}' is not available: {available.reason}")


def _check_same(stored: RunHeader, now: RunHeader, *, force: bool) -> None:
    if stored.plan_hash != now.plan_hash:
        raise PlanError("The folder contains the run of another suite.", hint="Choose another --out.")
    packages = dict.fromkeys([*stored.versions, *now.versions])
    changed = [name for name in packages if stored.versions.get(name) != now.versions.get(name)]
    changed += [name for name in _COMPARED if stored.environment.get(name) != now.environment.get(name)]
    if changed and not force:
        raise PlanError(
            f"{', '.join(changed)} changed since the run was started, so its figures would not be comparable.",
            hint="Start a new run, or resume with --force.",
        )
