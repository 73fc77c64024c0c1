"""Compare two models, or two environments, on this machine now: judge against the oracle, then time interleaved.

Both get the same inputs. The records of both sides get the same names, so that the gates can pair them. Does not
implement the gates: `core.compare.gates` does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gate_row import with_outcome
from sdpa_onnx.core.compare.gates import compare_paired
from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.records import Record, TimingRecord, is_beyond_budget
from sdpa_onnx.graph.model import ModelSource, OnnxModel, load_model
from sdpa_onnx.measure.ceilings import measure_ceilings
from sdpa_onnx.measure.pool import PATIENCE_SECONDS, WorkerPool, workers_until
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.bench.environments import require_environments
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.requested_sizes import timed_sizes
from sdpa_onnx.workflows.compare.judge import judge_both
from sdpa_onnx.workflows.compare.sides import (
    BASE,
    HEAD,
    ComparedRecords,
    aligned_timing,
    beyond_budget,
    graph_facts,
    not_compared,
    require_comparable,
)
from sdpa_onnx.workflows.timing.comparison import Arm, bench

__all__ = ["CompareOptions", "compare_models"]

# Under a time limit, of what is left.
_JUDGING_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of a comparison of two models.

    Args:
        runtimes: Names of available runtimes.
        sizes: Size sets to judge and time at; unnamed axes get default sizes; () = one set of default sizes.
        check: Sizes of axes in every size set, threads, seed and given inputs.
        plan: How much to time; its margin is that of the limits.
        limits: Limits of the gates, and which gates are skipped.
        pythons: Interpreters of BASE and of HEAD; None = ours.
        patience_seconds: Longest wait for one answer of a runtime; None = judge in this process, without a limit.
        on_progress: Called with a description of each step.
    """

    runtimes: Sequence[str]
    sizes: Sequence[Mapping[str, int]] = ()
    check: CheckOptions = field(default_factory=lambda: CheckOptions(sizes={}))
    plan: TimingPlan = field(default_factory=TimingPlan)
    limits: GateLimits = field(default_factory=GateLimits)
    pythons: tuple[Path | None, Path | None] = (None, None)
    patience_seconds: float | None = PATIENCE_SECONDS
    on_progress: Callable[[str], None] | None = None

    @property
    def checks(self) -> tuple[CheckOptions, ...]:
        """What to judge at each size set; with given inputs, there is one."""
        return tuple(replace(self.check, sizes={**self.check.sizes, **sizes}) for sizes in self.sizes or [{}])

    def at(self, step: str) -> None:
        """Report the current step."""
        if self.on_progress is not None:
            self.on_progress(step)


@dataclass(slots=True, kw_only=True)
class _Found:
    """The records so far; private and short-lived."""

    base: list[Record] = field(default_factory=list)
    head: list[Record] = field(default_factory=list)
    timed: list[tuple[TimingRecord, TimingRecord]] = field(default_factory=list)
    notes: list[GateRecord] = field(default_factory=list)

    def add(self, sides: ComparedRecords) -> None:
        self.base += sides.base
        self.head += sides.head
        self.notes += sides.notes


def compare_models(base: ModelSource, head: ModelSource, options: CompareOptions) -> list[GateRecord]:
    """Judge, inspect and time BASE and HEAD, and apply the gates.

    Args:
        base, head: Models with the same inputs and outputs; the same file where only the environments differ.
        options: See `CompareOptions`.

    Raises:
        ModelError: If a file is no model.
        PlanError: If they cannot be compared: inputs or outputs differ, or nothing differs; or if an interpreter
            cannot run them.
    """
    models = load_model(base), load_model(head)
    paths = models[0].path or Path(BASE), models[1].path or Path(HEAD)
    require_comparable(paths, models, options.pythons)
    require_environments(options.runtimes, dict(zip(("--base-python", "--head-python"), options.pythons, strict=True)))
    found, target = _Found(), paths[1].name
    for name in options.runtimes:
        runtime, deadline = get_runtime(name), options.plan.deadline
        try:
            _judge(models, runtime, target, options, found)
            _inspect_and_time(models, runtime, target, options, found)
        except KeyboardInterrupt:
            if not deadline.is_past:  # else by the time limit of the command
                raise
            reached = {note.gate for note in found.notes if note.runtime == name}
            missing = [gate for gate in Gate if gate not in reached | options.limits.skipped]
            found.notes += [beyond_budget(gate, name, target) for gate in missing]
    notes = [_with_reason(with_outcome(note, options.limits), note) for note in found.notes]
    return [*compare_paired(found.base, found.head, found.timed, options.limits), *notes]


def _with_reason(row: GateRecord, note: GateRecord) -> GateRecord:
    """The row with the reason of a note that has one; otherwise the evidence is the reason."""
    return msgspec.structs.replace(row, reason=note.reason) if note.reason else row


def _judge(
    models: tuple[OnnxModel, OnnxModel], runtime: Runtime, target: str, options: CompareOptions, found: _Found
) -> None:
    """Judge both, in at most half of the time that is left: the other half is for timing."""
    if Gate.AGREEMENT in options.limits.skipped:
        return
    if options.plan.deadline.is_past:
        found.notes.append(beyond_budget(Gate.AGREEMENT, runtime.name, target))
        return
    options.at(f"judging on {runtime.name}")
    found.add(
        judge_both(
            models,
            runtime,
            options.checks,
            target=target,
            pythons=options.pythons,
            patience_seconds=options.patience_seconds,
            deadline=options.plan.deadline.share(_JUDGING_SHARE),
        )
    )


def _inspect_and_time(
    models: tuple[OnnxModel, OnnxModel], runtime: Runtime, target: str, options: CompareOptions, found: _Found
) -> None:
    """Time at every size set, or only inspect the graphs if time and memory are skipped."""
    is_timed = not {Gate.TIME, Gate.MEMORY} <= options.limits.skipped
    if is_timed and runtime.measures_time:
        for number, given in enumerate(options.sizes or [{}], 1):
            work = "measuring memory" if Gate.TIME in options.limits.skipped else "timing"
            options.at(f"{work} on {runtime.name}, sizes {number} of {len(options.sizes) or 1}")
            _time(models, runtime, target, given, options, found)
        return
    if Gate.GRAPH not in options.limits.skipped and options.pythons != (None, None):
        reason = "The nodes that run in another environment are known only if it is timed."
        found.notes.append(not_compared(Gate.GRAPH, runtime.name, target, reason))
    elif Gate.GRAPH not in options.limits.skipped:
        facts = [graph_facts(model, runtime, target, options.patience_seconds) for model in models]
        found.add(ComparedRecords(base=[aligned_timing(facts[0], facts[1])], head=[facts[1]]))
    if is_timed:
        found.notes.append(
            not_compared(Gate.TIME, runtime.name, target, f"{runtime.name} is for agreement only: it is not timed.")
        )


def _time(
    models: tuple[OnnxModel, OnnxModel],
    runtime: Runtime,
    target: str,
    given: Mapping[str, int],
    options: CompareOptions,
    found: _Found,
) -> None:
    """One interleaved comparison of the two at one size set."""
    check = replace(options.check, sizes=timed_sizes(models[1], {**options.check.sizes, **given}), spreads=(1.0,))
    arms = [
        Arm(name=name, model=model, runtime=runtime, python=python, environment=str(python or ""))
        for name, model, python in zip((BASE, HEAD), models, options.pythons, strict=True)
    ]
    if options.plan.deadline.is_past:
        _note_beyond_budget(runtime, target, options, found)
        return
    plan = replace(options.plan, margin=options.limits.margin)
    patience = PATIENCE_SECONDS if options.patience_seconds is None else options.patience_seconds
    ceilings = measure_ceilings(threads=check.threads, memory=False)
    start = workers_until(plan.deadline)
    with WorkerPool(fresh=True, patience_seconds=patience, start=start) as pool:
        timed = bench(arms, check, target=target, baseline=BASE, plan=plan, ceilings=ceilings, pool=pool).records
    if any(map(is_beyond_budget, timed.values())):
        _note_beyond_budget(runtime, target, options, found)
        return
    found.base.append(aligned_timing(timed[BASE], timed[HEAD]))
    found.head.append(timed[HEAD])
    found.timed.append((timed[BASE], timed[HEAD]))


def _note_beyond_budget(runtime: Runtime, target: str, options: CompareOptions, found: _Found) -> None:
    """The gates that need a timing."""
    gates = [gate for gate in (Gate.GRAPH, Gate.MEMORY, Gate.TIME) if gate not in options.limits.skipped]
    found.notes += [beyond_budget(gate, runtime.name, target) for gate in gates]
