"""Judge BASE and HEAD on one runtime: every attention of both against the oracle, and their outputs on the same inputs.

The rule for outputs is that of `convert` for a converted graph: the error of HEAD against BASE in float64 may
be twice BASE's own in the same type, plus one rounding. Times nothing.
"""

from dataclasses import replace
from pathlib import Path

import msgspec

from sdpa_onnx.core.attention.spec_changes import spec_changes
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Record, Subject
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.pool import PATIENCE_SECONDS
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.bench.arm_agreement import judge_numbers
from sdpa_onnx.workflows.bench.bench_files import usual_sizes
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import lift, with_lifted_sites
from sdpa_onnx.workflows.compare.sides import (
    BASE,
    HEAD,
    ComparedRecords,
    aligned,
    by_sizes,
    not_compared,
    refused_alike,
)
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from sdpa_onnx.workflows.convert.proof import prove_conversion
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process
from sdpa_onnx.workflows.timing.job_folder import Arm
from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file

__all__ = ["judge_both"]

# Two size sets that no export traced, at the usual logit spread: each attention by itself runs at every spread.
_EFFORT = RunEffort(count=2, spreads=(1.0,))


def judge_both(
    models: tuple[OnnxModel, OnnxModel],
    runtime: Runtime,
    check: CheckOptions,
    *,
    target: str,
    pythons: tuple[Path | None, Path | None],
    patience_seconds: float | None,
) -> ComparedRecords:
    """Judge both models.

    Args:
        models: BASE and HEAD.
        runtime: Runtime of both; it runs in a separate process.
        check: Sizes that the caller fixes, threads, seed and given inputs.
        target: Name for the records.
        pythons: Interpreters; in another environment the outputs of both are judged at the sizes of `check`.
        patience_seconds: Longest wait for one answer.
    """
    if pythons != (None, None):
        return _judge_environments(models, runtime, check, target, pythons, patience_seconds)
    extras = VerifyExtras(patience_seconds=patience_seconds)
    sides: list[list[Record]] = []
    notes: list[GateRecord] = []
    for model in models:
        try:
            found = list(verify_file(model, [runtime.name], check, target=target, extras=extras))
            sides.append([one for one in found if isinstance(one, AgreementRecord | ExportRecord)])
        except ModelError as error:  # no attention can be judged by itself; the outputs still can
            sides.append([])
            notes.append(not_compared(Gate.AGREEMENT, runtime.name, target, str(error)))
    outputs = _outputs(models, runtime, check, target, patience_seconds)
    named = [by_sizes(side) for side in sides]
    sides = [refused_alike(named[0], named[1]), refused_alike(named[1], named[0])]
    return ComparedRecords(
        base=[*aligned(sides[0], sides[1]), *outputs.base],
        head=[*map(_without_nodes, sides[1]), *outputs.head],
        notes=[*notes[:1], *outputs.notes],
    )


def _judge_environments(
    models: tuple[OnnxModel, OnnxModel],
    runtime: Runtime,
    check: CheckOptions,
    target: str,
    pythons: tuple[Path | None, Path | None],
    patience_seconds: float | None,
) -> ComparedRecords:
    """Judge the outputs of both environments; their workers need the runtime only, so the ladder is not run."""
    sized = check if check.inputs is not None else replace(check, sizes=usual_sizes(models[1], check.sizes))
    sides, notes = [], []
    for name, model, python in zip((BASE, HEAD), models, pythons, strict=True):
        arm = Arm(name=name, model=model, runtime=runtime, python=python, environment=str(python or ""))
        patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        numbers = judge_numbers([arm], sized, target=target, patience_seconds=patience)
        sides.append([_named(record, f"{target}, {name}", target) for record in numbers.records])
        notes += [
            not_compared(Gate.AGREEMENT, runtime.name, target, f"{name} was not judged: {why}.")
            for why in numbers.unjudged.values()
        ]
    return ComparedRecords(base=aligned(by_sizes(sides[0]), sides[1]), head=by_sizes(sides[1]), notes=notes)


def _named(record: AgreementRecord, arm_target: str, target: str) -> Record:
    """The record without the name of the arm."""
    return msgspec.structs.replace(record, target=target, case=record.case.replace(arm_target, target))


def _without_nodes(record: Record) -> Record:
    """The record without the nodes of the file, which the graph gate reports with the nodes that run."""
    return msgspec.structs.replace(record, nodes={}) if isinstance(record, ExportRecord) else record


def _outputs(
    models: tuple[OnnxModel, OnnxModel],
    runtime: Runtime,
    check: CheckOptions,
    target: str,
    patience_seconds: float | None,
) -> ComparedRecords:
    """The outputs of both on the same inputs; the error of BASE sets the limit."""
    if check.inputs is not None:
        return ComparedRecords()  # both were judged on the given inputs already
    before, now = ([str(value.shape) for value in model.ir.graph.inputs] for model in models)
    if before != now:
        reason = f"Outputs were not compared: the inputs have shapes {', '.join(now)}, before {', '.join(before)}."
        return ComparedRecords(notes=[not_compared(Gate.AGREEMENT, runtime.name, target, reason)])
    try:
        with own_process(runtime, patience_seconds) as worker:
            proof = prove_conversion(
                lift(models[0]).model,
                with_lifted_sites(models[1]).model,
                worker,
                target=target,
                seed=check.seed,
                threads=check.threads,
                effort=_EFFORT,
            )
    except (ModelError, SessionError) as error:
        return ComparedRecords(
            notes=[not_compared(Gate.AGREEMENT, runtime.name, target, f"Outputs were not compared: {error}")]
        )
    outputs = [_of_outputs(records) for records in (proof.source, proof.records)]
    changes = " ".join(spec_changes(*([one.spec for one in lift(model).read] for model in models)))
    head = [_with_cause(record, changes) for record in by_sizes(outputs[1])]
    notes = [] if not changes or any(map(_is_bad, head)) else [_changed(runtime.name, target, changes)]
    return ComparedRecords(base=aligned(by_sizes(outputs[0]), outputs[1]), head=head, notes=notes)


def _changed(runtime: str, target: str, changes: str) -> GateRecord:
    """A row for a difference between the specs in the files that changes no output."""
    note = not_compared(Gate.AGREEMENT, runtime, target, changes)
    return msgspec.structs.replace(note, word=GateVerdict.CHANGED)


def _with_cause(record: Record, changes: str) -> Record:
    """The judgement; where outputs differ, with the difference between the specs as the cause."""
    if not isinstance(record, AgreementRecord) or not changes or not _is_bad(record):
        return record
    return msgspec.structs.replace(record, diagnosis=f"{changes} {record.diagnosis or record.reason}".rstrip())


def _is_bad(record: Record) -> bool:
    return isinstance(record, AgreementRecord) and record.verdict in (Verdict.SUSPICIOUS, Verdict.WRONG)


def _of_outputs(records: tuple[AgreementRecord, ...]) -> list[Record]:
    return [_without_ran(record) for record in records if record.subject is Subject.OUTPUT]


def _without_ran(record: AgreementRecord) -> AgreementRecord:
    """The judgement without the kernels that ran, which the graph gate reports."""
    return msgspec.structs.replace(record, ran={}, expanded={}, fused={}, providers={})
