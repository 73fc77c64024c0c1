"""Compare two models, or two environments, on this machine now: judged by the oracle, then timed interleaved.

Both get the same inputs. What is found becomes the records that the gates read, named alike on both sides; the gates
themselves are `core.compare.gates`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gate_row import with_outcome
from sdpa_onnx.core.compare.gates import compare_paired
from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.measure.ceilings import measure_ceilings
from sdpa_onnx.measure.pool import PATIENCE_SECONDS, WorkerPool
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.bench.bench_files import CEILING_SECONDS, usual_sizes
from sdpa_onnx.workflows.bench.environments import require_environments
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.compare.judge import judge_both
from sdpa_onnx.workflows.compare.sides import (
    BASE,
    HEAD,
    ComparedRecords,
    aligned_timing,
    graph_facts,
    not_compared,
    require_comparable,
)
from sdpa_onnx.workflows.timing.comparison import Arm, bench

__all__ = ["CompareOptions", "compare_models"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """How two models are compared.

    Args:
        runtimes: Names of available runtimes.
        sizes: Sets of sizes to time at, axes that are not named being chosen; () = one set, as chosen.
        check: Sizes that are judged, threads, seed and given inputs.
        plan: How much to time; its margin is that of the limits.
        limits: What is allowed, and which gates are skipped.
        pythons: Interpreters of BASE and of HEAD; None = ours.
        patience_seconds: Longest wait for one answer of a runtime; None = judge in this process, without a limit.
        on_progress: Told what is being done.
    """

    runtimes: Sequence[str]
    sizes: Sequence[Mapping[str, int]] = ()
    check: CheckOptions = field(default_factory=lambda: CheckOptions(sizes={}))
    plan: TimingPlan = field(default_factory=TimingPlan)
    limits: GateLimits = field(default_factory=GateLimits)
    pythons: tuple[Path | None, Path | None] = (None, None)
    patience_seconds: float | None = PATIENCE_SECONDS
    on_progress: Callable[[str], None] | None = None

    def at(self, words: str) -> None:
        """Tell what is being done."""
        if self.on_progress is not None:
            self.on_progress(words)


@dataclass(slots=True, kw_only=True)
class _Found:
    """What was seen so far; private and short-lived."""

    base: list[Record] = field(default_factory=list)
    head: list[Record] = field(default_factory=list)
    timed: list[tuple[TimingRecord, TimingRecord]] = field(default_factory=list)
    notes: list[GateRecord] = field(default_factory=list)

    def take(self, sides: ComparedRecords) -> None:
        self.base += sides.base
        self.head += sides.head
        self.notes += sides.notes


def compare_models(base: Path, head: Path, asked: CompareOptions) -> list[GateRecord]:
    """Judge, inspect and time BASE and HEAD, and ask the gates.

    Args:
        base, head: Files with the same inputs and outputs; the same file where only the environments differ.
        asked: How.

    Raises:
        ModelError: If one is no model.
        PlanError: If they cannot be compared: other inputs or outputs, or nothing differs; or if an interpreter is
            none that can run them.
    """
    models = load_model(base), load_model(head)
    require_comparable((base, head), models, asked.pythons)
    require_environments(asked.runtimes, dict(zip(("--base-python", "--head-python"), asked.pythons, strict=True)))
    found = _Found()
    for name in asked.runtimes:
        runtime = get_runtime(name)
        if Gate.AGREEMENT not in asked.limits.skipped:
            asked.at(f"judging on {name}")
            found.take(
                judge_both(
                    models,
                    runtime,
                    asked.check,
                    target=head.name,
                    pythons=asked.pythons,
                    patience_seconds=asked.patience_seconds,
                )
            )
        _look_and_time(models, runtime, head.name, asked, found)
    notes = [with_outcome(note, asked.limits) for note in found.notes]
    return [*compare_paired(found.base, found.head, found.timed, asked.limits), *notes]


def _look_and_time(
    models: tuple[OnnxModel, OnnxModel], runtime: Runtime, target: str, asked: CompareOptions, found: _Found
) -> None:
    """Time at every set of sizes, or only look at the graphs where nothing is to be timed."""
    is_timed = not {Gate.TIME, Gate.MEMORY} <= asked.limits.skipped
    if is_timed and runtime.measures_time:
        for number, given in enumerate(asked.sizes or [{}], 1):
            asked.at(f"timing on {runtime.name}, sizes {number} of {len(asked.sizes) or 1}")
            _time(models, runtime, target, given, asked, found)
        return
    if Gate.GRAPH not in asked.limits.skipped and asked.pythons != (None, None):
        reason = "What another environment runs is seen only where it is timed."
        found.notes.append(not_compared(Gate.GRAPH, runtime.name, target, reason))
    elif Gate.GRAPH not in asked.limits.skipped:
        facts = [graph_facts(model, runtime, target, asked.patience_seconds) for model in models]
        found.take(ComparedRecords(base=[aligned_timing(facts[0], facts[1])], head=[facts[1]]))
    if is_timed:
        found.notes.append(
            not_compared(Gate.TIME, runtime.name, target, f"{runtime.name} is for agreement only: it is not timed.")
        )


def _time(
    models: tuple[OnnxModel, OnnxModel],
    runtime: Runtime,
    target: str,
    given: Mapping[str, int],
    asked: CompareOptions,
    found: _Found,
) -> None:
    """One interleaved comparison of the two at one set of sizes."""
    check = replace(asked.check, sizes=usual_sizes(models[1], {**asked.check.sizes, **given}), spreads=(1.0,))
    arms = [
        Arm(name=name, model=model, runtime=runtime, python=python, environment=str(python or ""))
        for name, model, python in zip((BASE, HEAD), models, asked.pythons, strict=True)
    ]
    plan = replace(asked.plan, margin=asked.limits.margin)
    patience = PATIENCE_SECONDS if asked.patience_seconds is None else asked.patience_seconds
    ceilings = measure_ceilings(threads=check.threads, seconds=CEILING_SECONDS)
    with WorkerPool(fresh=True, patience_seconds=patience) as pool:
        timed = bench(arms, check, target=target, baseline=BASE, plan=plan, ceilings=ceilings, pool=pool).records
    found.base.append(aligned_timing(timed[BASE], timed[HEAD]))
    found.head.append(timed[HEAD])
    found.timed.append((timed[BASE], timed[HEAD]))
