"""Time several arms (a model on a runtime) in worker processes, as ratios to a baseline.

Every arm gets the same inputs, pre-bound. Judges no outputs. Loads no arm in our own process, so a runtime that
crashes ends its arm only.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.roofline import AttentionWork, Ceilings, is_memory_bound
from sdpa_onnx.core.records.records import BUDGET_REASON, Outcome, TimingRecord, outcome_of_error
from sdpa_onnx.errors import ModelError, NoAnswerError, PlanError
from sdpa_onnx.measure.bandwidth import working_set_bandwidth
from sdpa_onnx.measure.caches import cold_copies
from sdpa_onnx.measure.ceilings import with_memory
from sdpa_onnx.measure.launch import ArmTooSlowError, BaselineFailedError
from sdpa_onnx.measure.machine_load import IDLE_TOLERANCE, idle_cores
from sdpa_onnx.measure.pool import TimedWorker, WorkerPool
from sdpa_onnx.measure.samples import CLONE, ArmSamples
from sdpa_onnx.measure.schedule import BudgetSpentError, LoneArmError, Schedule, ScheduleResult
from sdpa_onnx.measure.timing_notice import announced
from sdpa_onnx.measure.timing_plan import Cache, TimingPlan, lone_plan
from sdpa_onnx.measure.verdict_rule import quiet_blocks
from sdpa_onnx.measure.what_ran import worker_report
from sdpa_onnx.runtimes.arm_job import ArmJob
from sdpa_onnx.runtimes.base import RanReport, Unsupported
from sdpa_onnx.runtimes.torch_compiled import TORCH_COMPILE
from sdpa_onnx.runtimes.workers import WorkerFailedError, WorkerNotStartedError
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.timing.graph_work import CountedWork, model_work
from sdpa_onnx.workflows.timing.job_folder import Arm, JobFolder, longer
from sdpa_onnx.workflows.timing.records import RecordContext, refused_record, timed_record

__all__ = ["CLONE", "Arm", "TimedComparison", "bench", "require_free_names"]

Feeds = Mapping[str, NDArray[np.generic]]

# Least number of blocks of a launch without other load on the machine for a comparison with several threads.
# Source: METHOD B.4.
_QUIET_BLOCKS = 40
# Inputs so small that more copies fit into twice the last-level cache stay in the cache in practice.
_MOST_COLD_COPIES = 64
_NOW = "Undecidable on this machine now:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedComparison:
    """The result of a comparison.

    Args:
        records: By arm, in the given order.
        samples: Raw samples of the arms that were timed, and of the baseline's clone under the name `CLONE`.
        seconds: Wall time of the comparison.
        launch_seconds: Of every launch: starts, loading, warm-up, blocks.
    """

    records: Mapping[str, TimingRecord]
    samples: Mapping[str, ArmSamples] = field(default_factory=dict)
    seconds: float = 0.0
    launch_seconds: tuple[float, ...] = ()


def bench(  # noqa: PLR0913  # what a caller may choose
    arms: Sequence[Arm],
    check: CheckOptions,
    *,
    target: str,
    baseline: str,
    plan: TimingPlan | None = None,
    ceilings: Ceilings | None = None,
    pool: WorkerPool | None = None,
    folder: JobFolder | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    times_survivor: bool = True,
) -> TimedComparison:
    """Time arms in interleaved visits of worker processes.

    An arm that fails is a record with its reason, never an exception. If the baseline fails, the comparison starts
    again with the next arm as the baseline, and every record has a warning. An arm with more threads than idle cores is
    skipped; if other processes use the machine meanwhile, the arms of one thread are timed again alone.

    Args:
        arms: At least one; all have the same inputs. A single arm is timed up to the first look, without a ratio.
        check: Sizes, seed, threads; its first spread is used.
        target: Name for the records.
        baseline: Name of the arm that ratios refer to.
        plan: How much to measure; None = the default.
        ceilings: Measured in the same run, for the share of the roof, and to decide whether the caches must be cold.
        pool: Keeps workers over several comparisons; None = new ones for every launch.
        folder: Where models and inputs are written; None = a new one.
        on_progress: Called with a description of each step.
        on_note: Called after the first launch with an estimate of the shortest total time.
        times_survivor: Whether the only arm that did not fail to load is timed; otherwise it is skipped.

    Raises:
        PlanError: If two arms share a name, one has the clone's, the baseline is not among them, or an option is wrong.
        FolderError: If the temporary folder cannot be written.
    """
    names = [arm.name for arm in arms]
    require_free_names(names)
    if len(set(names)) != len(names) or baseline not in names:
        raise PlanError(f"Arms are {', '.join(names)}, the baseline is '{baseline}'.", hint="Pass each arm once.")
    run = _ComparisonRun(
        arms={arm.name: arm for arm in arms},
        check=check,
        target=target,
        plan=plan or TimingPlan(),
        on_progress=on_progress or (lambda _: None),
        on_note=on_note or (lambda _: None),
        times_survivor=times_survivor,
    )
    return run.run(baseline, ceilings, pool, folder)


def require_free_names(names: Sequence[str]) -> None:
    """Refuse the name that the baseline's clone has.

    Raises:
        PlanError: If an arm has it.
    """
    if CLONE in names:
        raise PlanError(f"No arm can be called '{CLONE}': every comparison has one.", hint="Choose another name.")


@dataclass(slots=True)
class _ComparisonRun:
    """One comparison while it runs; `refused` grows by every arm that is not timed."""

    arms: Mapping[str, Arm]
    check: CheckOptions
    target: str
    plan: TimingPlan
    on_progress: Callable[[str], None]
    on_note: Callable[[str], None]
    times_survivor: bool
    refused: dict[str, tuple[Outcome, str]] = field(default_factory=dict, init=False)
    ran: dict[str, RanReport] = field(default_factory=dict, init=False)
    works: dict[str, CountedWork] = field(default_factory=dict, init=False)
    start: float = field(default_factory=time.monotonic, init=False)

    @property
    def threads(self) -> int:
        """The most threads of any arm that is not refused."""
        return max((self._threads(name) for name in self.arms if name not in self.refused), default=1)

    def _threads(self, name: str) -> int:
        return self.arms[name].threads or self.check.threads

    def run(
        self, baseline: str, ceilings: Ceilings | None, pool: WorkerPool | None, kept: JobFolder | None
    ) -> TimedComparison:
        self.refused |= _too_many_threads({name: self._threads(name) for name in self.arms})
        if len(self.refused) == len(self.arms):
            return self._refusals(baseline)
        with ExitStack() as stack:
            notice = stack.enter_context(announced())
            folder = kept or stack.enter_context(JobFolder())
            workers = pool or stack.enter_context(WorkerPool())
            feeds = self._runnable_feeds()
            roof, copies = self._roof(ceilings, feeds)
            jobs = self._jobs(folder, feeds, copies)
            if len(jobs) == 1:
                self.plan = lone_plan(self.plan)
            found = self._measure(jobs, baseline, workers, notice.others)
            if found is None:
                return self._refusals(baseline)
            base, measured = found
            warnings = (*notice.warnings(), *self._cut_warning(measured))
            if base != baseline:
                cause = "was skipped" if self.refused[baseline][0] is Outcome.SKIPPED else "failed"
                warnings = (*warnings, f"The baseline {baseline} {cause}, so ratios refer to {base}.")
            return self._comparison(base, measured, folder, roof, warnings, cache="cold" if copies > 1 else "warm")

    def _measure(
        self, jobs: dict[str, ArmJob], baseline: str, workers: WorkerPool, after_launch: Callable[[], object]
    ) -> tuple[str, ScheduleResult] | None:
        """The arm that ratios refer to, and the measurement; None if every arm failed."""
        while jobs and not self._is_alone(jobs):
            base = baseline if baseline in jobs else next(iter(jobs))
            try:
                measured = self._schedule(jobs, base, workers, after_launch).measure()
            except BudgetSpentError:
                self.refused |= dict.fromkeys(jobs, (Outcome.SKIPPED, BUDGET_REASON))
            except BaselineFailedError as error:
                self.refused[base] = self._outcome(error.__cause__ or error)
            except LoneArmError as error:
                self._fail(error.failures)
            else:
                self._fail(measured.failures)
                if _is_quiet(measured, base):
                    return base, measured
                self._skip_threads(measured, base)
            jobs = {name: job for name, job in jobs.items() if name not in self.refused}
        return None

    def _schedule(
        self, jobs: Mapping[str, ArmJob], base: str, workers: WorkerPool, after_launch: Callable[[], object]
    ) -> Schedule:
        left = max(self.plan.budget_seconds - (time.monotonic() - self.start), 0.0)
        return Schedule(
            jobs=jobs,
            baseline=base,
            plan=replace(self.plan, budget_seconds=left),
            pool=workers,
            threads=self.threads,
            on_progress=self.on_progress,
            on_note=self.on_note,
            question=self._note_what_ran,
            after_launch=after_launch,
            times_survivor=self.times_survivor,
        )

    def _fail(self, failures: Mapping[str, WorkerFailedError]) -> None:
        self.refused |= {name: self._outcome(error) for name, error in failures.items()}

    def _outcome(self, error: BaseException) -> tuple[Outcome, str]:
        """Outcome and reason of an arm that failed; one that took its share of the time limit did not."""
        is_late = self.plan.deadline.is_past and isinstance(error, NoAnswerError | WorkerNotStartedError)
        if is_late or isinstance(error, ArmTooSlowError):
            return Outcome.SKIPPED, BUDGET_REASON
        return outcome_of_error(error), str(error)

    def _is_alone(self, jobs: Mapping[str, ArmJob]) -> bool:
        """Whether failures have left one arm that must not be timed alone; it is then refused."""
        failed = [name for name, (outcome, _) in self.refused.items() if outcome.is_failure]
        if self.times_survivor or len(jobs) > 1 or not failed:
            return False
        reason = f"nothing to compare with: {' and '.join(failed)} failed."
        self.refused |= dict.fromkeys(jobs, (Outcome.SKIPPED, reason))
        return True

    def _skip_threads(self, measured: ScheduleResult, base: str) -> None:
        """Refuse the arms of several threads: too few blocks are without other load."""
        blocks = measured.samples[base].wall_seconds.shape[1]
        quiet = quiet_blocks(measured.samples)
        reason = f"{_NOW} other processes used the machine in all but {quiet:.0f} of {blocks} blocks of a launch."
        several = [name for name in measured.samples if name != CLONE and self._threads(name) > 1]
        self.refused |= dict.fromkeys(several, (Outcome.SKIPPED, reason))

    def _note_what_ran(self, name: str, worker: TimedWorker) -> None:
        if name != CLONE:
            arm = self.arms[name]
            self.ran[name] = worker_report(worker, arm.model, arm.runtime.name, threads=self._threads(name))

    def _runnable_feeds(self) -> dict[str, Feeds]:
        """Inputs of the arms that can run."""
        feeds = {}
        for name, arm in self.arms.items():
            if name in self.refused:
                continue
            support = arm.runtime.supports(arm.model) if arm.python is None else None
            if isinstance(support, Unsupported):
                self.refused[name] = Outcome.UNSUPPORTED, support.reason
                continue
            try:
                feeds[name] = self._feeds(arm)
            except ModelError as error:
                self.refused[name] = Outcome.FAILED, str(error)
        return feeds

    def _jobs(self, folder: JobFolder, feeds: Mapping[str, Feeds], copies: int) -> dict[str, ArmJob]:
        """Jobs of the arms whose files can be written."""
        jobs = {}
        for name, arrays in feeds.items():
            arm = self.arms[name]
            try:
                jobs[name] = folder.job(
                    arm, arrays, threads=self.check.threads, new_length=self._new_length(arm), copies=copies
                )
            except ModelError as error:
                self.refused[name] = Outcome.FAILED, str(error)
        return jobs

    def _feeds(self, arm: Arm) -> Feeds:
        if self.check.inputs is not None:
            return self.check.inputs
        return draw_feeds(arm.model, self.check.sizes, spread=self.check.spreads[0], seed=self.check.seed)

    def _new_length(self, arm: Arm) -> Feeds | None:
        """Inputs at another length, or None if no length may change."""
        sizes = longer(self.check.sizes)
        if arm.runtime.name == TORCH_COMPILE:  # it would compile again, for any length, and then run that everywhere
            return None
        if self.check.inputs is not None or sizes == dict(self.check.sizes):
            return None
        try:
            return draw_feeds(arm.model, sizes, spread=self.check.spreads[0], seed=self.check.seed)
        except ModelError:
            return None

    def _roof(self, ceilings: Ceilings | None, feeds: Mapping[str, Feeds]) -> tuple[Ceilings | None, int]:
        """The ceilings for this case, and how many copies of the inputs the calls use in turn."""
        for name, arrays in feeds.items():
            if name not in self.works:
                self.works[name] = model_work(self.arms[name].read, self.check.sizes, arrays)
        work = next((self.works[name].work for name in feeds if self.works[name].work is not None), None)
        copies = self._copies(ceilings, feeds, work)
        if work is None or ceilings is None:
            return ceilings, copies
        if copies > 1:
            return with_memory(ceilings, self.threads), copies
        return replace(ceilings, bytes_per_second=working_set_bandwidth(work.bytes_moved, self.threads)), 1

    def _copies(self, ceilings: Ceilings | None, feeds: Mapping[str, Feeds], work: AttentionWork | None) -> int:
        """Above 1 if the caches must be cold: as requested, or if memory bounds a case that is not tiny."""
        if self.plan.cache is Cache.WARM or not feeds:
            return 1
        input_bytes = sum(array.nbytes for array in next(iter(feeds.values())).values())
        copies = cold_copies(input_bytes, arms=len(feeds) + 1)
        if self.plan.cache is Cache.COLD:
            return copies
        if work is None or ceilings is None or copies > _MOST_COLD_COPIES:
            return 1
        return copies if is_memory_bound(work, with_memory(ceilings, self.threads)) else 1

    def _comparison(
        self,
        base: str,
        measured: ScheduleResult,
        folder: JobFolder,
        roof: Ceilings | None,
        warnings: tuple[str, ...],
        *,
        cache: str,
    ) -> TimedComparison:
        decision = measured.decision
        if decision is None:  # excluded by `_is_quiet`
            return self._refusals(base)
        context = RecordContext(
            check=self.check,
            target=self.target,
            baseline=base,
            plan=self.plan,
            measured=measured,
            decision=decision,
            ceilings=roof,
            cache=cache,
            ran=self.ran,
            warnings=warnings,
            model_bytes={name: folder.model_bytes(arm) for name, arm in self.arms.items()},
            works=self.works,
        )
        return TimedComparison(
            records={name: self._record(name, context) for name in self.arms},
            samples=measured.samples,
            seconds=time.monotonic() - self.start,
            launch_seconds=measured.seconds,
        )

    def _cut_warning(self, measured: ScheduleResult) -> tuple[str, ...]:
        """A sentence if the time limit of the command ended the measurement early."""
        done, least = len(measured.launches), self.plan.looks[0].launches
        return (f"The time limit allowed {done} of {least} launches.",) if done < least else ()

    def _record(self, name: str, context: RecordContext) -> TimingRecord:
        if name in self.refused:
            return msgspec.structs.replace(self._refusal(name, context.baseline), warnings=context.warnings)
        return timed_record(self.arms[name], context)

    def _refusals(self, baseline: str) -> TimedComparison:
        records = {name: self._refusal(name, baseline) for name in self.arms}
        return TimedComparison(records=records, seconds=time.monotonic() - self.start)

    def _refusal(self, name: str, baseline: str) -> TimingRecord:
        outcome, reason = self.refused[name]
        return refused_record(self.arms[name], self.check, outcome, reason, target=self.target, baseline=baseline)


def _is_quiet(measured: ScheduleResult, base: str) -> bool:
    """Whether enough blocks had no other load; with one thread all blocks count, by their CPU time."""
    blocks = measured.samples[base].wall_seconds.shape[1]
    return measured.decision is not None and quiet_blocks(measured.samples) >= min(_QUIET_BLOCKS, blocks)


def _too_many_threads(threads: Mapping[str, int]) -> dict[str, tuple[Outcome, str]]:
    """Arms that cannot be timed at this moment, with outcome and reason. One thread always can, by its CPU time."""
    several = {name: count for name, count in threads.items() if count > 1}
    idle = idle_cores() if several else None
    if idle is None:
        reason = f"{_NOW} this system does not report its load, and several threads need an idle one."
        return dict.fromkeys(several, (Outcome.SKIPPED, reason))
    return {
        name: (Outcome.SKIPPED, f"{_NOW} {count} threads were requested, and {idle:.1f} cores are idle.")
        for name, count in several.items()
        if count > idle + IDLE_TOLERANCE
    }
