"""Time files as a user requests: arms, sizes and baseline; one comparison for each size set.

Judges the outputs of the timed arms. Writes and shows nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.measure.ceilings import measure_ceilings
from sdpa_onnx.measure.pool import PATIENCE_SECONDS, WorkerPool
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.workflows.bench.arm_agreement import ArmAgreement, judge_numbers
from sdpa_onnx.workflows.bench.arms import ArmChoice, ArmSet, find_baseline, make_contest
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.file_feeds import named_axes, sizes_of
from sdpa_onnx.workflows.timing.comparison import bench, require_free_names
from sdpa_onnx.workflows.verify.axis_links import require_axes

__all__ = ["CEILING_SECONDS", "BenchResult", "BenchTask", "PreparedBench", "prepare", "time_all", "usual_sizes"]

# Sizes of axes that the caller does not fix.
_BATCH_SIZE, _SEQ_LEN = 1, 512
# Time for each part of the ceilings, seconds.
CEILING_SECONDS = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTask:
    """A requested benchmark.

    Args:
        paths: Files with the same inputs.
        choice: The requested arms.
        check: Given inputs, seed; sizes and threads are set here.
        sizes: Sizes that the caller fixes, one comparison for each; other axes get default sizes.
        at: Whether the key length equals the query length if only the query length is named.
        baseline: Arm, or a word of its name, that ratios refer to; None = torch, else the first.
        plan: How much one comparison measures.
        patience_seconds: Longest wait for one answer of a runtime.
    """

    paths: Sequence[Path]
    choice: ArmChoice
    check: CheckOptions
    sizes: Sequence[Mapping[str, int]] = ({},)
    at: bool = False
    baseline: str | None = None
    plan: TimingPlan = field(default_factory=TimingPlan)
    patience_seconds: float = PATIENCE_SECONDS


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
        PlanError: If the files cannot be compared, a name is wrong, or nothing can be timed.
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is not available.
    """
    if len({path.resolve() for path in task.paths}) < len(task.paths):
        raise PlanError("The same file is given twice.")
    models = {path: named_axes(load_model(path)) for path in task.paths}
    _check_comparable(models)
    first = next(iter(models.values()))
    checks = tuple(_check(first, task, sizes) for sizes in task.sizes)
    _require_different(checks)
    contest = make_contest(models, task.choice, on_step=on_step)
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
    with WorkerPool(fresh=True, patience_seconds=prepared.task.patience_seconds) as pool:
        for check in prepared.checks:
            yield _time_one(prepared, check, pool, on_step, on_note)


def _time_one(
    prepared: PreparedBench,
    check: CheckOptions,
    pool: WorkerPool,
    on_step: Callable[[str], None],
    on_note: Callable[[str], None],
) -> BenchResult:
    arms, task = prepared.contest.arms, prepared.task
    on_step("checking the numbers")
    numbers = judge_numbers(arms, check, target=prepared.target, patience_seconds=task.patience_seconds)
    comparison = bench(
        arms,
        check,
        target=prepared.target,
        baseline=prepared.baseline,
        plan=task.plan,
        ceilings=measure_ceilings(threads=check.threads, seconds=CEILING_SECONDS),
        pool=pool,
        on_progress=on_step,
        on_note=on_note,
        times_survivor=False,
    )
    case = comparison.records[prepared.baseline].case
    records = tuple(
        _with_warnings(record, case, (*prepared.contest.warnings.get(name, ()), *numbers.warnings.get(name, ())))
        for name, record in comparison.records.items()
    )
    return BenchResult(sizes=check.sizes, records=records, numbers=numbers, samples=comparison.samples)


def _with_warnings(record: TimingRecord, case: str, warnings: Sequence[str]) -> TimingRecord:
    """The record with its case and the warnings about its model."""
    return msgspec.structs.replace(record, case=case, group=case, warnings=(*record.warnings, *warnings))


def _require_different(checks: Sequence[CheckOptions]) -> None:
    for number, check in enumerate(checks):
        if any(check.sizes == other.sizes for other in checks[:number]):
            sizes = ", ".join(f"{axis}={size}" for axis, size in check.sizes.items())
            raise PlanError(f"Two comparisons would be at the same sizes, {sizes}.", hint="Omit one --at.")


def _check(model: OnnxModel, task: BenchTask, given: Mapping[str, int]) -> CheckOptions:
    threads = task.choice.threads[0]
    if task.check.inputs is not None:
        return replace(task.check, sizes=sizes_of(model, task.check.inputs), spreads=(1.0,), threads=threads)
    if task.at and "q_seq_len" in given:
        given = {"kv_seq_len": given["q_seq_len"], **given} if "kv_seq_len" in model.facts.axes else given
    return replace(task.check, sizes=usual_sizes(model, given), spreads=(1.0,), threads=threads)


def usual_sizes(model: OnnxModel, given: Mapping[str, int]) -> dict[str, int]:
    """Sizes of every axis: the given ones, else batch 1 and length 512.

    Raises:
        PlanError: If a size names no axis.
    """
    require_axes(model.facts, [given])
    return {axis: given.get(axis, _BATCH_SIZE if axis.startswith("batch") else _SEQ_LEN) for axis in model.facts.axes}


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
