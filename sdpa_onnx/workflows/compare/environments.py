"""Judge BASE and HEAD in the environments of two interpreters: attentions by the oracle, outputs against each other.

Their workers need the runtime only, so neither the ladder nor the proof of the axes is run. Times nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.records import AgreementRecord, Record, Subject
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.pool import PATIENCE_SECONDS
from sdpa_onnx.runtimes.base import RanReport, Runtime
from sdpa_onnx.workflows.bench.arm_agreement import ArmAgreement, judge_numbers, step_of
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import InputStep
from sdpa_onnx.workflows.check.file_feeds import sizes_of
from sdpa_onnx.workflows.check.lifted_model import lift
from sdpa_onnx.workflows.check.long_sizes import known_lengths, longest_of, untested
from sdpa_onnx.workflows.check.output_check import OutputRun, judge_output, relative_yardstick, source_agreement
from sdpa_onnx.workflows.check.requested_sizes import timed_sizes
from sdpa_onnx.workflows.check.run_context import RunContext, end_sizes
from sdpa_onnx.workflows.compare.sides import (
    BASE,
    HEAD,
    ComparedRecords,
    aligned,
    by_sizes,
    compared_at,
    not_compared,
    with_sizes,
)
from sdpa_onnx.workflows.locate.float64_graph import Float64Graph
from sdpa_onnx.workflows.timing.job_folder import Arm

__all__ = ["judge_environments"]


def judge_environments(
    models: tuple[OnnxModel, OnnxModel],
    runtime: Runtime,
    checks: Sequence[CheckOptions],
    target: str,
    pythons: tuple[Path | None, Path | None],
    patience_seconds: float | None,
) -> ComparedRecords:
    """Judge both environments at every requested size set, on the same inputs.

    Args:
        models: BASE and HEAD.
        runtime: Runtime of both.
        checks: One for each requested size set; unnamed axes get the sizes of a timing.
        target: Name for the records.
        pythons: Interpreters of BASE and of HEAD; None = ours.
        patience_seconds: Longest wait for one answer.

    Raises:
        PlanError: If a size names no axis.
    """
    base = lift(models[0]).model
    sides: dict[str, list[Record]] = {BASE: [], HEAD: []}
    notes: list[GateRecord] = []
    sizes: list[Mapping[str, int]] = []
    patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    arms = [
        Arm(name=name, model=model, runtime=runtime, python=python, environment=str(python or ""))
        for name, model, python in zip((BASE, HEAD), models, pythons, strict=True)
    ]
    for check in checks:
        step = _step(base, check)
        sizes.append(step.check.sizes)
        numbers = judge_numbers(arms, step.check, target=target, patience_seconds=patience, step=step)
        for name, side in sides.items():
            arm = f"{target}, {name}"
            side += [_named(record, arm, target) for record in numbers.records if record.target == arm]
        notes += [
            not_compared(Gate.AGREEMENT, runtime.name, target, f"{name} was not judged: {why.rstrip('.')}.")
            for name, why in numbers.unjudged.items()
        ]
        for own, other in _outputs(base, models[1], runtime.name, step, numbers, f"{target}, {BASE}"):
            sides[BASE].append(_named(own, own.target, target))
            sides[HEAD].append(_named(other, other.target, target))
    known = known_lengths([base, lift(models[1]).model])
    longest = longest_of(sizes, models[0].facts.batch_axes)
    notes.append(compared_at(runtime.name, target, sizes, longest, untested(known, longest)))
    head = [with_sizes(record) for record in by_sizes(sides[HEAD])]
    return ComparedRecords(base=aligned(by_sizes(sides[BASE]), sides[HEAD]), head=head, notes=notes)


def _step(base: OnnxModel, check: CheckOptions) -> InputStep:
    """The inputs of both, drawn for BASE."""
    if check.inputs is not None:
        return step_of(base, replace(check, sizes=sizes_of(base, check.inputs), spreads=(1.0,)))
    return step_of(base, replace(check, sizes=timed_sizes(base, check.sizes), spreads=(1.0,)))


def _named(record: AgreementRecord, arm_target: str, target: str) -> AgreementRecord:
    """The record without the name of the arm."""
    return msgspec.structs.replace(record, target=target, case=record.case.replace(arm_target, target))


def _outputs(
    base: OnnxModel, head: OnnxModel, runtime: str, step: InputStep, numbers: ArmAgreement, target: str
) -> Iterator[tuple[AgreementRecord, AgreementRecord]]:
    """The judgement of each output of BASE and of HEAD; the error of BASE against its float64 graph sets the limit."""
    own, other = numbers.outputs.get(BASE), numbers.outputs.get(HEAD)
    if own is None or other is None:
        return
    wide = Float64Graph(base).run(step.feeds, base.output_names, given=own)
    is_right = BASE not in numbers.warnings
    ran = RanReport(node_counts={}, providers={}, precision="")
    for name in base.output_names:
        truth = wide.values.get(name, own[name])
        run = OutputRun(truth=truth, source=own[name], actual=other[name], is_source_right=is_right)
        found = (source_agreement(run), judge_output(run, relative_yardstick([run])))
        contexts = (
            RunContext(model=model, runtime=runtime, ran=ran, check=step.check, step=step.word, target=target)
            for model in (base, head)
        )
        first, second = (
            context.record(one, spread=None, subject=Subject.OUTPUT, site=name, sizes=end_sizes(step.check))
            for context, one in zip(contexts, found, strict=True)
        )
        yield first, second
