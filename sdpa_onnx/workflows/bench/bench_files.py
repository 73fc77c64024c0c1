"""Time files as a user requests: arms, sizes and baseline; one comparison for each size set.

Judges the outputs of the timed arms. Writes and shows nothing.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sdpa_onnx.core.attention.roofline import Ceilings
from sdpa_onnx.core.records.records import BUDGET_REASON, Outcome, TimingRecord
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.ceilings import CEILING_SECONDS, measure_ceilings
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.measure.pool import PATIENCE_SECONDS, WorkerPool, workers_until
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.workflows.bench.arm_agreement import ArmAgreement, judge_numbers, step_of
from sdpa_onnx.workflows.bench.arms import ArmChoice, ArmSet, find_baseline, make_contest
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.file_feeds import named_axes, sizes_of
from sdpa_onnx.workflows.check.module_fit import require_fit
from sdpa_onnx.workflows.check.requested_sizes import timed_sizes
from sdpa_onnx.workflows.timing.comparison import bench, require_free_names
from sdpa_onnx.workflows.timing.job_folder import Arm, JobFolder
from sdpa_onnx.workflows.timing.records import refused_record
from sdpa_onnx.workflows.verify.load_against import load_against

__all__ = ["BenchResult", "BenchTask", "PreparedBench", "prepare", "skipped_result", "time_all"]

# Parts of the ceilings that a comparison measures.
_CEILINGS = 4
# Under a time limit: most of what is left that judging may take, before anything is timed; and a comparison is begun
# only if at least this share of what the last one took is left.
_JUDGING_SHARE, _LEAST_SHARE = 0.5, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTask:
    """A requested benchmark.

    Args:
        paths: Files with the same inputs.
        choice: The requested arms.
        check: Given inputs, seed; sizes and threads are set here.
        sizes: Sizes that the caller fixes, one comparison for each; other axes get default sizes.
        baseline: Arm, or a word of its name, that ratios refer to; None = torch, else the first.
        plan: How much one comparison measures.
        patience_seconds: Longest wait for one answer of a runtime.
        against: Target of the PyTorch module that the files came from, which is timed and compared with too; "" = none.
        loaded: Models that are in memory, with their module, by path; others are read.
    """

    paths: Sequence[Path]
    choice: ArmChoice
    check: CheckOptions
    sizes: Sequence[Mapping[str, int]] = ({},)
    baseline: str | None = None
    plan: TimingPlan = field(default_factory=TimingPlan)
    patience_seconds: float = PATIENCE_SECONDS
    against: str = ""
    loaded: Mapping[Path, OnnxModel] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBench:
    """A benchmark that is ready to run.

    Args:
        task: The request.
        contest: Its arms.
        checks: Inputs and sizes, one comparison for each.
        baseline: Name of an arm.
        target: Name for the records.
    """

    task: BenchTask
    contest: ArmSet
    checks: tuple[CheckOptions, ...]
    baseline: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One comparison.

    Args:
        sizes: Of every axis.
        records: One record per arm.
        numbers: The judgements of the outputs of the arms.
        samples: By arm, the clone of the baseline included.
    """

    sizes: Mapping[str, int]
    records: tuple[TimingRecord, ...]
    numbers: ArmAgreement
    samples: Mapping[str, ArmSamples]


def prepare(task: BenchTask, *, on_step: Callable[[str], None] = lambda _: None) -> PreparedBench:
    """Read the files, choose sizes and build the arms; nothing is timed.

    Args:
        task: The request.
        on_step: Called with a description of each step.

    Raises:
        ModelError: If a file is no model.
        PlanError: If the files cannot be compared, a name is wrong, the module of a file fails or returns other
            outputs than it, or nothing can be timed.
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is not available.
    """
    if len({path.resolve() for path in task.paths}) < len(task.paths):
        raise PlanError("The same file is given twice.")
    models = {
        path: named_axes(task.loaded[path] if path in task.loaded else load_against(path, task.against or None))
        for path in task.paths
    }
    _check_comparable(models)
    first = next(iter(models.values()))
    checks = tuple(_check(first, task, sizes) for sizes in task.sizes)
    _require_different(checks)
    if task.against:
        _require_fits(models, checks, task)
    choice = replace(task.choice, against_module=bool(task.against))
    contest = make_contest(models, choice, on_step=on_step)
    require_free_names([arm.name for arm in contest.arms])
    return PreparedBench(
        task=task,
        contest=contest,
        checks=checks,
        baseline=find_baseline(contest.arms, task.baseline),
        target=task.paths[0].stem if len(task.paths) == 1 else "files",
    )


def time_all(
    prepared: PreparedBench,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Iterator[BenchResult]:
    """Run the comparisons one after the other.

    Args:
        prepared: The benchmark.
        on_step: Called with a description of each step.
        on_note: Called with a lower estimate of the time of each comparison.

    Returns:
        Each comparison as it finishes; an arm that fails is a record with its reason.
    """
    deadline, last = prepared.task.plan.deadline, 0.0
    start = workers_until(deadline)
    with WorkerPool(fresh=True, patience_seconds=prepared.task.patience_seconds, start=start) as pool:
        for check in prepared.checks:
            if not deadline.allows(_LEAST_SHARE * last) or deadline.is_past:
                yield skipped_result(prepared, check)
                continue
            left = deadline.seconds_left
            yield _time_one(prepared, check, pool, on_step, on_note)
            last = 0.0 if math.isinf(left) else left - deadline.seconds_left


def skipped_result(prepared: PreparedBench, check: CheckOptions) -> BenchResult:
    """A comparison that the time limit did not reach: every arm is skipped, and nothing was judged."""
    records = tuple(_beyond_budget(prepared, arm, check) for arm in prepared.contest.arms)
    return BenchResult(sizes=check.sizes, records=records, numbers=ArmAgreement(), samples={})


def _beyond_budget(prepared: PreparedBench, arm: Arm, check: CheckOptions) -> TimingRecord:
    outcome = Outcome.SKIPPED
    return refused_record(arm, check, outcome, BUDGET_REASON, target=prepared.target, baseline=prepared.baseline)


def _time_one(
    prepared: PreparedBench,
    check: CheckOptions,
    pool: WorkerPool,
    on_step: Callable[[str], None],
    on_note: Callable[[str], None],
) -> BenchResult:
    arms, task = prepared.contest.arms, prepared.task
    on_step("checking the numbers")
    with JobFolder() as folder:
        judging = task.plan.deadline.share(_JUDGING_SHARE)
        numbers = judge_numbers(
            arms,
            check,
            target=prepared.target,
            patience_seconds=task.patience_seconds,
            start=workers_until(judging),
            folder=folder,
            deadline=judging,
        )
        # What had no answer in its share of the time would take that of the other arms too.
        timed = [arm for arm in arms if arm.name not in numbers.late]
        found: Mapping[str, TimingRecord] = {}
        samples: Mapping[str, ArmSamples] = {}
        if timed:
            comparison = bench(
                timed,
                check,
                target=prepared.target,
                baseline=prepared.baseline if prepared.baseline not in numbers.late else timed[0].name,
                plan=task.plan,
                ceilings=_ceilings(check.threads, task.plan.deadline),
                pool=pool,
                folder=folder,
                on_progress=on_step,
                on_note=on_note,
                times_survivor=False,
            )
            found, samples = comparison.records, comparison.samples
    records = {arm.name: found.get(arm.name) or _beyond_budget(prepared, arm, check) for arm in arms}
    case = records[prepared.baseline].case
    complete = tuple(_completed(record, case, prepared, numbers) for record in records.values())
    return BenchResult(sizes=check.sizes, records=complete, numbers=numbers, samples=samples)


def _ceilings(threads: int, deadline: Deadline) -> Ceilings | None:
    """The ceilings of this machine; None where the time limit leaves no time for them."""
    if not deadline.allows(_CEILINGS * CEILING_SECONDS / _JUDGING_SHARE):
        return None
    return measure_ceilings(threads=threads, memory=False)


def _completed(record: TimingRecord, case: str, prepared: PreparedBench, numbers: ArmAgreement) -> TimingRecord:
    """The record with its case, the warnings about its model, and the time that compiling took."""
    warnings = (*prepared.contest.warnings.get(record.arm, ()), *numbers.warnings.get(record.arm, ()))
    # The judge compiles first; what it compiled is there when the timing starts.
    compiled = numbers.first_seconds.get(record.arm) if record.compile_seconds is not None else None
    return msgspec.structs.replace(
        record,
        case=case,
        group=case,
        warnings=(*record.warnings, *warnings),
        compile_seconds=record.compile_seconds if compiled is None else compiled,
    )


def _require_fits(models: Mapping[Path, OnnxModel], checks: Sequence[CheckOptions], task: BenchTask) -> None:
    """Before anything is timed: a module that never runs, or returns something else, is an error."""
    for path, model in models.items():
        module = "The module" if path in task.loaded else task.against
        trials = ((check.sizes, step_of(model, check).feeds) for check in checks)
        require_fit(model, module, str(path), trials)


def _require_different(checks: Sequence[CheckOptions]) -> None:
    for number, check in enumerate(checks):
        if any(check.sizes == other.sizes for other in checks[:number]):
            sizes = ", ".join(f"{axis}={size}" for axis, size in check.sizes.items())
            raise PlanError(f"Two comparisons would be at the same sizes, {sizes}.", hint="Omit one --at.")


def _check(model: OnnxModel, task: BenchTask, given: Mapping[str, int]) -> CheckOptions:
    threads = task.choice.threads[0]
    if task.check.inputs is not None:
        return replace(task.check, sizes=sizes_of(model, task.check.inputs), spreads=(1.0,), threads=threads)
    return replace(task.check, sizes=timed_sizes(model, given), spreads=(1.0,), threads=threads)


def _check_comparable(models: Mapping[Path, OnnxModel]) -> None:
    names = {path: model.input_names for path, model in models.items()}
    first = next(iter(names))
    for path, inputs in names.items():
        if inputs != names[first]:
            raise PlanError(
                f"{path} has inputs {', '.join(inputs)}, {first} has {', '.join(names[first])}.",
                hint="Only models with the same inputs can be compared.",
            )
    # Files whose attention cannot be read may be compared; two that are known to compute different attention may not.
    specs = {path: tuple(site.spec for site in model.sites) for path, model in models.items() if model.sites}
    known = next(iter(specs.values()), ())
    for path, found in specs.items():
        if found != known:
            raise PlanError(f"{path} and {first} compute different attention.", hint="Time them one by one.")
