"""The graph gate: compares the nodes in the file and the nodes that a runtime executes.

These facts are exact, so a regression fails without statistics: a newly expanded operator, a lost fusion, nodes that
fall back to the CPU, more executed nodes, a larger file. Other changes are reported and do not fail. Reads no file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gate_match import RecordT, match_records
from sdpa_onnx.core.compare.gate_row import gate_record, percent
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.record_base import BaseRecord, Sizes
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Record, TimingRecord
from sdpa_onnx.core.records.subject import Subject
from sdpa_onnx.core.records.verdicts import Outcome

__all__ = ["graph_gate"]

_FALLBACK = "CPUExecutionProvider"
# Number of operators whose count changes are listed.
_MOST_CHANGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Facts about one graph on one runtime; empty or None if unknown."""

    opset: int | None
    version: str
    nodes: Mapping[str, int]
    model_bytes: int | None
    ran: Mapping[str, int]
    expanded: Mapping[str, int]
    fused: Mapping[str, int]
    providers: Mapping[str, int]


def graph_gate(base: Sequence[Record], head: Sequence[Record], limits: GateLimits) -> Iterator[GateRecord]:
    """Compare graphs: one gate record per model and runtime, whatever the number of sizes.

    Executed nodes come from timing records. Agreement records are used only if a model was not timed, because they
    execute a graph with additional outputs.
    """
    timed = _changed(*(_of_kind(side, TimingRecord) for side in (base, head)))
    judged = _changed(*(_of_kind(side, AgreementRecord) for side in (base, head)))
    files = _changed(*(_of_kind(side, ExportRecord) for side in (base, head)))
    models = {_model(record) for record, _, _ in timed}
    for record, before, now in (*timed, *(one for one in judged if _model(one[0]) not in models), *files):
        yield _compared(record, before, now, limits)


def _of_kind(records: Sequence[Record], kind: type[RecordT]) -> list[RecordT]:
    return [one for one in records if isinstance(one, kind) and one.outcome in (Outcome.OK, Outcome.DISAGREES)]


def _changed(base: Sequence[RecordT], head: Sequence[RecordT]) -> list[tuple[BaseRecord, _Facts, _Facts]]:
    """List every model with its facts in BASE and HEAD, once unless the facts depend on the sizes."""
    found: dict[object, tuple[BaseRecord, _Facts, _Facts]] = {}
    for match in match_records(base, head):
        if match.pair is not None:
            before, now = map(_facts, match.pair)
            if (before.ran or before.nodes) and (now.ran or now.nodes):
                found.setdefault((_model(match.pair[1]), repr(before), repr(now)), (match.pair[1], before, now))
    return list(found.values())


def _model(record: BaseRecord) -> tuple[object, ...]:
    options = getattr(record, "options", {})
    return record.target, record.form, record.opset, record.runtime, tuple(sorted(options.items()))


def _facts(record: BaseRecord) -> _Facts:
    """Extract the facts of a record of any kind."""
    counts = {name: dict(getattr(record, name, {})) for name in ("ran", "expanded", "fused", "providers")}
    nodes = record.nodes if isinstance(record, ExportRecord) else getattr(record, "model_nodes", {})
    version = getattr(record, "runtime_version", "")
    return _Facts(
        opset=record.opset, version=version, nodes=nodes, model_bytes=getattr(record, "model_bytes", None), **counts
    )


def _compared(of: BaseRecord, before: _Facts, now: _Facts, limits: GateLimits) -> GateRecord:
    worse, better = list(_worse(before, now, limits)), list(_worse(now, before, limits))
    changes = list(_change_sentences(before, now))
    # A change that is both worse and better (fewer nodes, but expanded) is a regression.
    verdict = (
        GateVerdict.REGRESSION
        if worse
        else GateVerdict.BETTER
        if better
        else GateVerdict.CHANGED
        if changes
        else GateVerdict.SAME
    )
    evidence = " ".join([*worse, *changes]) or "The file and the executed nodes are the same."
    row = gate_record(Gate.GRAPH, verdict, of, base=_summary(before), head=_summary(now), evidence=evidence)
    return msgspec.structs.replace(
        row,
        case="",
        spec=None,
        past_seq_len=None,
        sizes=Sizes(),
        inputs="",
        subject=Subject.ATTENTION,
        site="",
        threads=None,
        amount=_amount(before, now),
    )  # the facts are the same for all sizes


def _amount(before: _Facts, now: _Facts) -> float | None:
    """Larger of the ratios of executed nodes and of file bytes to those before; None if neither is known."""
    ran = sum(before.ran.values()), sum(now.ran.values())
    pairs = ran, (before.model_bytes, now.model_bytes)
    return max((after / was for was, after in pairs if was and after is not None), default=None)


def _worse(before: _Facts, now: _Facts, limits: GateLimits) -> Iterator[str]:
    """Yield one sentence per regression."""
    for operator, count in now.expanded.items():
        if operator not in before.expanded:
            yield f"{operator} is now expanded into {_nodes(count)}: the runtime has no kernel for this node."
    for operator in before.fused:
        # With fewer nodes its parts are gone too: another operator replaces them.
        if operator not in now.ran and sum(now.ran.values()) > sum(before.ran.values()):
            yield f"{operator} is no longer fused: it ran before, and more nodes run now."
    if now.providers.get(_FALLBACK) and before.providers and _FALLBACK not in before.providers:
        yield f"{_nodes(now.providers[_FALLBACK])} fell back to {_FALLBACK}; before there were none."
    ran_before, ran_now = sum(before.ran.values()), sum(now.ran.values())
    if ran_before and ran_now > ran_before * (1 + limits.more_nodes):
        yield f"{_nodes(ran_now)} run, before {ran_before}: an increase of more than {percent(limits.more_nodes)}."
    if not before.model_bytes or not now.model_bytes:
        return
    more = now.model_bytes - before.model_bytes
    if more > limits.larger_file_bytes and more > limits.larger_file * before.model_bytes:
        yield f"The file has {now.model_bytes} bytes, before {before.model_bytes}."


def _change_sentences(before: _Facts, now: _Facts) -> Iterator[str]:
    """Yield one sentence per change; these changes alone do not fail the gate."""
    if before.opset and now.opset and before.opset != now.opset:
        yield f"Opset {before.opset} became {now.opset}."
    if before.version and now.version and before.version != now.version:
        yield f"{before.version} became {now.version}."
    for what, was, is_now in (("In the file", before.nodes, now.nodes), ("What runs", before.ran, now.ran)):
        changes = _changes(was, is_now) if was and is_now else []
        left = len(changes) - _MOST_CHANGES
        more = f" and {left} more" if left > 0 else ""
        if changes:
            yield f"{what}: {', '.join(changes[:_MOST_CHANGES])}{more}."
    for operator in now.fused:
        if operator not in before.ran:
            yield f"{operator} is fused now."
    for operator in before.fused:
        if operator not in now.ran:
            yield f"{operator} was fused and no longer runs."
    for operator in before.expanded:
        if operator not in now.expanded:
            yield f"{operator} is no longer expanded."
    if set(before.providers) != set(now.providers) and before.providers and now.providers:
        yield f"Providers: {_counts(before.providers)}, now {_counts(now.providers)}."


def _changes(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """List operators whose count changed: removed ones first, then by the size of the change."""
    pairs = {name: (before.get(name, 0), now.get(name, 0)) for name in sorted({*before, *now})}
    ordered = sorted(pairs.items(), key=lambda item: (item[1][1] > 0, -abs(item[1][1] - item[1][0])))
    return [f"{name} {was} to {is_now}" for name, (was, is_now) in ordered if was != is_now]


def _summary(facts: _Facts) -> str:
    parts = [_nodes(sum(facts.ran.values())) + " run" if facts.ran else f"{_nodes(sum(facts.nodes.values()))} in file"]
    parts += [f"{operator} expanded" for operator in facts.expanded]
    return ", ".join(parts)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
