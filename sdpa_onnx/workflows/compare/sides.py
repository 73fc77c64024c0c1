"""BASE and HEAD of a comparison of models: check that they can be compared, and give their records the same names.

Judges and times nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import (
    BUDGET_REASON,
    AgreementRecord,
    ExportRecord,
    Outcome,
    Record,
    Subject,
    TimingRecord,
)
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.check.long_sizes import reach_in_words, sizes_in_words
from sdpa_onnx.workflows.verify.inspect_file import what_runs

__all__ = [
    "BASE",
    "HEAD",
    "ComparedRecords",
    "aligned",
    "aligned_timing",
    "beyond_budget",
    "by_sizes",
    "compared_at",
    "graph_facts",
    "is_bad",
    "not_compared",
    "refused_alike",
    "require_comparable",
    "with_sizes",
]

# Subject of a judgement, and its name.
_Site = tuple[Subject, str]
# Names of the two arms.
BASE, HEAD = "BASE", "HEAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRecords:
    """Records of BASE and of HEAD, paired by equal names; and notes on gates that could not be applied."""

    base: Sequence[Record] = ()
    head: Sequence[Record] = ()
    notes: Sequence[GateRecord] = ()


def require_comparable(
    paths: tuple[Path, Path], models: tuple[OnnxModel, OnnxModel], pythons: tuple[Path | None, Path | None]
) -> None:
    """Refuse models that cannot be compared.

    Raises:
        PlanError: If inputs or outputs differ in name or type, or BASE and HEAD are identical.
    """
    if paths[0].resolve() == paths[1].resolve() and pythons[0] == pythons[1]:
        raise PlanError(
            f"BASE and HEAD are the same file, {paths[1]}.",
            hint="Pass two files, or two environments with --base-python and --head-python.",
        )
    for what in ("inputs", "outputs"):
        before, now = (_listed(model, what) for model in models)
        if before != now:
            raise PlanError(
                f"{paths[1]} has {what} {', '.join(now)}; {paths[0]} has {', '.join(before)}.",
                hint="Only models with the same inputs and outputs can be compared.",
            )


def _listed(model: OnnxModel, what: str) -> list[str]:
    values = model.ir.graph.inputs if what == "inputs" else model.ir.graph.outputs
    return [f"{value.name} ({value.dtype.name.lower() if value.dtype else 'unknown type'})" for value in values]


def not_compared(gate: Gate, runtime: str, target: str, reason: str) -> GateRecord:
    """A row for a gate that was not applied, with the reason."""
    return GateRecord(
        gate=gate,
        word=GateVerdict.NOT_COMPARABLE,
        target=target,
        case=target,
        runtime=runtime,
        evidence=reason,
    )


def beyond_budget(gate: Gate, runtime: str, target: str) -> GateRecord:
    """A row for a gate that the time limit of the command did not reach, or not for everything."""
    row = not_compared(gate, runtime, target, "Skipped: the time limit (--budget) was reached first.")
    return msgspec.structs.replace(row, reason=BUDGET_REASON)


def compared_at(
    runtime: str, target: str, sizes: Sequence[Mapping[str, int]], longest: int, untested: tuple[int, ...]
) -> GateRecord:
    """A row that passes, with the sizes at which the outputs of both were compared.

    Args:
        runtime: Name of the runtime.
        target: Name of the model.
        sizes: Size sets.
        longest: The longest length among them.
        untested: Compared numbers of both that it does not go beyond.
    """
    sets = tuple(sizes_in_words(one) for one in sizes if one)
    at = f" at {'; '.join(sets)}" if sets else ""
    text = f"Outputs were compared{at}. {reach_in_words(longest, untested)}".rstrip()
    row = not_compared(Gate.AGREEMENT, runtime, target, text)
    return msgspec.structs.replace(row, word=GateVerdict.SAME, compared_at=sets, longest=longest, untested=untested)


def with_sizes(record: Record, changes: str = "") -> Record:
    """The judgement; of an output that differs, with the sizes, and with the difference of the specs as the cause."""
    if not isinstance(record, AgreementRecord) or not is_bad(record):
        return record
    at = f"At {sizes_in_words(record.axes)}:" if record.axes else ""
    parts = (changes, at, record.diagnosis or record.reason)
    return msgspec.structs.replace(record, diagnosis=" ".join(filter(None, parts)))


def is_bad(record: Record) -> bool:
    """Whether a judgement is suspicious or wrong."""
    return isinstance(record, AgreementRecord) and record.verdict in (Verdict.SUSPICIOUS, Verdict.WRONG)


def by_sizes(records: Sequence[Record]) -> list[Record]:
    """Judgements with a case name that consists of the sizes alone.

    A case id contains the spec too. If HEAD computes something else than BASE, the gate must report it, and not
    treat it as another case.
    """
    return [_by_sizes(record) for record in records]


def _by_sizes(record: Record) -> Record:
    if not isinstance(record, AgreementRecord):
        return msgspec.structs.replace(record, case=record.target)
    sizes = {"b": record.sizes.batch_size, "q": record.sizes.q_seq_len, "kv": record.sizes.kv_seq_len}
    case = "_".join([record.target, *(f"{name}{size}" for name, size in sizes.items() if size is not None)])
    return msgspec.structs.replace(record, case=case, spec=None, past_seq_len=None)


def refused_alike(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """The judgements under the name of the one case that the other side refused, so that one row compares them."""
    refused = [one for one in others if isinstance(one, AgreementRecord)]
    if not refused or any(one.site or one.verdict is not None for one in refused):
        return list(records)
    case = {"case": refused[0].case, "spec": refused[0].spec, "past_seq_len": refused[0].past_seq_len}
    return [msgspec.structs.replace(one, **case) if isinstance(one, AgreementRecord) else one for one in records]


def aligned(base: Sequence[Record], head: Sequence[Record]) -> list[Record]:
    """The judgements of BASE under the names of HEAD: form, opset, and attentions in their order."""
    like = next((record for record in head if isinstance(record, AgreementRecord)), None)
    if like is None:
        return list(base)
    sites, theirs = _sites(base), _sites(head)
    names = dict(zip(sites, theirs, strict=True)) if len(sites) == len(theirs) else {}
    return [_aligned(record, like, names) for record in base]


def _aligned(record: Record, like: AgreementRecord, names: Mapping[_Site, _Site]) -> Record:
    match record:
        case AgreementRecord():
            subject, site = names.get((record.subject, record.site), (record.subject, record.site))
            return msgspec.structs.replace(record, form=like.form, opset=like.opset, subject=subject, site=site)
        case ExportRecord():
            return msgspec.structs.replace(record, form=like.form, opset=like.opset, nodes={})
        case _:
            return record


def _sites(records: Sequence[Record]) -> list[_Site]:
    """Attentions in the order in which they were judged; an output of the model keeps its own name."""
    judged = (one for one in records if isinstance(one, AgreementRecord) and one.site)
    return list(dict.fromkeys((one.subject, one.site) for one in judged if one.subject is not Subject.OUTPUT))


def aligned_timing(base: TimingRecord, head: TimingRecord) -> TimingRecord:
    """The timing of BASE under the names of the arm HEAD; its opset and the nodes that ran stay its own."""
    same = {
        name: getattr(head, name)
        for name in ("target", "case", "spec", "past_seq_len", "group", "form", "arm", "python", "options")
    }
    return msgspec.structs.replace(base, **same)


def graph_facts(model: OnnxModel, runtime: Runtime, target: str, patience_seconds: float | None) -> TimingRecord:
    """The nodes of a file and the nodes that a runtime runs, as a timing record without times."""
    ran = what_runs(model, runtime.name, patience_seconds=patience_seconds)
    facts = TimingRecord(
        target=target,
        case=target,
        form=model.facts.form.value,
        opset=model.opset,
        runtime=runtime.name,
        arm=HEAD,
        model_nodes=model.node_counts(),
    )
    if isinstance(ran, str):
        return msgspec.structs.replace(facts, outcome=Outcome.FAILED, reason=ran)
    counts = {"ran": ran.node_counts, "expanded": ran.expanded, "fused": ran.fused, "providers": ran.providers}
    return msgspec.structs.replace(
        facts,
        model_bytes=None if model.path is None else model.path.stat().st_size,
        **{name: dict(found) for name, found in counts.items()},
    )
