"""Judge BASE and HEAD on one runtime: every attention of both against the oracle, and their outputs on the same inputs.

The rule for outputs is that of `convert` for a converted graph: the error of HEAD against BASE in float64 may
be twice BASE's own in the same type, plus one rounding. Times nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from sdpa_onnx.core.attention.spec_changes import spec_changes
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Outcome, Record, Subject, Verdict
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import lift, with_lifted_sites
from sdpa_onnx.workflows.compare.environments import judge_environments
from sdpa_onnx.workflows.compare.sides import (
    ComparedRecords,
    aligned,
    beyond_budget,
    by_sizes,
    compared_at,
    is_bad,
    not_compared,
    refused_alike,
    with_sizes,
)
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from sdpa_onnx.workflows.convert.proof import prove_conversion
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process
from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, contradiction_records, verify_file

__all__ = ["judge_both"]

# Two size sets that no export traced, at the usual logit spread: each attention by itself runs at every spread.
_EFFORT = RunEffort(count=2, spreads=(1.0,), least=128, alone=False)


def judge_both(
    models: tuple[OnnxModel, OnnxModel],
    runtime: Runtime,
    checks: Sequence[CheckOptions],
    *,
    target: str,
    pythons: tuple[Path | None, Path | None],
    patience_seconds: float | None,
    deadline: Deadline | None = None,
) -> ComparedRecords:
    """Judge both models.

    Args:
        models: BASE and HEAD.
        runtime: Runtime of both; it runs in a separate process.
        checks: One for each size set that the caller requests: sizes that it fixes, threads, seed and given inputs.
        target: Name for the records.
        pythons: Interpreters; in another environment both are judged at the requested sizes alone.
        patience_seconds: Longest wait for one answer.
        deadline: When judging ends: what only one of the two has then is left out, and a note says so.

    Raises:
        PlanError: If a size names no axis, or sizes that must be equal are not.
    """
    limit = deadline or Deadline()
    if pythons != (None, None):
        return judge_environments(models, runtime, checks, target, pythons, patience_seconds)
    sides: list[list[Record]] = []
    notes: list[GateRecord] = []
    for model in models:
        try:
            sides.append(list(_judged_alone(model, runtime, checks, target, patience_seconds, limit)))
        except ModelError as error:  # no attention can be judged by itself; the outputs still can
            sides.append([])
            notes.append(not_compared(Gate.AGREEMENT, runtime.name, target, str(error)))
    is_cut = limit.is_past
    outputs = (
        ComparedRecords(notes=[beyond_budget(Gate.AGREEMENT, runtime.name, target)])
        if is_cut
        else _outputs(models, runtime, checks, target, patience_seconds)
    )
    stated = _stated(models, runtime.name, target)
    named = [by_sizes([*side, *more]) for side, more in zip(sides, stated, strict=True)]
    sides = [refused_alike(named[0], named[1]), refused_alike(named[1], named[0])]
    pair = aligned(sides[0], sides[1]), list(map(_without_nodes, sides[1]))
    if is_cut:
        pair = _in_both(pair[0], pair[1]), [*_in_both(pair[1], pair[0])]
    return ComparedRecords(
        base=[*pair[0], *outputs.base],
        head=[*pair[1], *outputs.head],
        notes=[*notes[:1], *outputs.notes],
    )


def _judged_alone(
    model: OnnxModel,
    runtime: Runtime,
    checks: Sequence[CheckOptions],
    target: str,
    patience_seconds: float | None,
    limit: Deadline,
) -> Iterator[Record]:
    """Every attention of one model against the oracle at every requested size set; the axes are proved once."""
    for number, check in enumerate(checks):
        extras = VerifyExtras(patience_seconds=patience_seconds, axes=not number)
        for record in verify_file(model, [runtime.name], check, target=target, extras=extras):
            if (
                isinstance(record, AgreementRecord | ExportRecord)
                and getattr(record, "subject", "") is not Subject.READING
            ):
                yield record
            if limit.is_past:
                return


def _in_both(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """The records with a counterpart on the other side, and those that are bad: they count by themselves."""
    known = {_named(record) for record in others}
    return [record for record in records if _named(record) in known or is_bad(record)]


def _named(record: Record) -> tuple[object, ...]:
    names = ("case", "subject", "site", "inputs")
    return type(record), *(getattr(record, name, None) for name in names)


def _stated(models: tuple[OnnxModel, OnnxModel], runtime: str, target: str) -> tuple[list[Record], list[Record]]:
    """One record for each side if the metadata of either contradicts its nodes; nothing if both agree."""
    wrong = [list(contradiction_records(lift(model), runtime, target)) for model in models]
    if not any(wrong):
        return [], []
    agrees = AgreementRecord(
        target=target,
        case=target,
        # Both under the names of HEAD, as `aligned` gives them to BASE.
        form=models[1].facts.form.value,
        opset=models[1].opset,
        runtime=runtime,
        subject=Subject.READING,
        site="metadata",
        verdict=Verdict.OK,
    )
    base, head = ([msgspec.structs.replace(agrees, **_verdict_of(found))] for found in wrong)
    return list(base), list(head)


def _verdict_of(found: list[AgreementRecord]) -> dict[str, object]:
    if not found:
        return {}
    text = " ".join(record.reason for record in found)
    return {"verdict": Verdict.WRONG, "outcome": Outcome.DISAGREES, "reason": text, "diagnosis": text}


def _without_nodes(record: Record) -> Record:
    """The record without the nodes of the file, which the graph gate reports with the nodes that run."""
    return msgspec.structs.replace(record, nodes={}) if isinstance(record, ExportRecord) else record


def _outputs(
    models: tuple[OnnxModel, OnnxModel],
    runtime: Runtime,
    checks: Sequence[CheckOptions],
    target: str,
    patience_seconds: float | None,
) -> ComparedRecords:
    """The outputs of both on the same inputs; the error of BASE sets the limit."""
    check = checks[0]
    before, now = ([str(value.shape) for value in model.ir.graph.inputs] for model in models)
    if before != now and check.inputs is None:
        reason = f"Outputs were not compared: the inputs have shapes {', '.join(now)}, before {', '.join(before)}."
        return ComparedRecords(notes=[not_compared(Gate.AGREEMENT, runtime.name, target, reason)])
    read = [lift(model) for model in models]
    effort = replace(
        _EFFORT,
        requested=tuple(one.sizes for one in checks if one.sizes),
        inputs=None if check.inputs is None else dict(check.inputs),
    )
    try:
        with own_process(runtime, patience_seconds) as worker:
            proof = prove_conversion(
                read[0].model,
                with_lifted_sites(models[1]).model,
                worker,
                target=target,
                seed=check.seed,
                threads=check.threads,
                effort=effort,
            )
    except (ModelError, SessionError) as error:
        return ComparedRecords(
            notes=[not_compared(Gate.AGREEMENT, runtime.name, target, f"Outputs were not compared: {error}")]
        )
    outputs = [_of_outputs(records) for records in (proof.source, proof.records)]
    changes = " ".join(spec_changes(*([one.spec for one in lifted.read] for lifted in read)))
    head = [with_sizes(record, changes) for record in by_sizes(outputs[1])]
    notes = [] if not changes or any(map(is_bad, head)) else [_changed(runtime.name, target, changes)]
    notes.append(compared_at(runtime.name, target, proof.sizes, proof.longest, proof.untested))
    return ComparedRecords(base=aligned(by_sizes(outputs[0]), outputs[1]), head=head, notes=notes)


def _changed(runtime: str, target: str, changes: str) -> GateRecord:
    """A row for a difference between the specs in the files that changes no output."""
    note = not_compared(Gate.AGREEMENT, runtime, target, changes)
    return msgspec.structs.replace(note, word=GateVerdict.CHANGED)


def _of_outputs(records: tuple[AgreementRecord, ...]) -> list[Record]:
    """Judgements of outputs, and runs of HEAD that failed where BASE runs."""
    return [_without_ran(record) for record in records if record.subject is Subject.OUTPUT or record.verdict is None]


def _without_ran(record: AgreementRecord) -> AgreementRecord:
    """The judgement without the kernels that ran, which the graph gate reports."""
    return msgspec.structs.replace(record, ran={}, expanded={}, fused={}, providers={})
