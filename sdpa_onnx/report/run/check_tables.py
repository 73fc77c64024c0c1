"""Tables of what was checked: agreement, first bad node, planted faults, exports, failures and warnings.

They are text cells without widths, colours or markup. Timing and saturation have tables in their own folders.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ExportRecord,
    LocatedRecord,
    Outcome,
    PlantedRecord,
    Record,
    Verdict,
)
from sdpa_onnx.report.text.labels import (
    CommonFactors,
    case_in_words,
    is_output_check,
    join_words,
    plain,
    series_name,
    site_in_words,
)
from sdpa_onnx.report.text.number_text import NOT_KNOWN, count, figure, share
from sdpa_onnx.report.text.table import Column, Section, Table
from sdpa_onnx.report.text.tally import baked_words, bound_ratio, has_bound_ratio, not_ok, outcome_of, reason_of

__all__ = ["agreement_table", "export_table", "located_table", "not_ok_table", "planted_table", "warning_table"]

_MOST_NODE_TYPES = 4

_OUTCOME_HEADS = {
    Outcome.DISAGREES: "disagreeing",
    Outcome.FAILED: "failed",
    Outcome.UNSUPPORTED: "unsupported",
    Outcome.SKIPPED: "skipped",
}


def agreement_table(records: Sequence[Record], usual: CommonFactors) -> Table:
    """Verdicts and largest errors, one section per target, one row per arm."""
    gathered: dict[str, dict[str, list[AgreementRecord]]] = {}
    for record in records:
        if isinstance(record, AgreementRecord):
            dtype = "" if record.dtype in ("", usual.dtype) else f" {record.dtype}"
            output = ", output" if is_output_check(record) else ""
            arms = gathered.setdefault(record.target, {})
            arms.setdefault(f"{series_name(record)}{dtype}{output}", []).append(record)
    verdicts = _verdicts_shown(records)
    heads = ("checks", *verdicts, "not run", "error / bound", "abs. error", "provable scale error")
    return Table(
        title="Agreement with the float64 oracle",
        heading="target",
        columns=(Column(head="runtime, form, opset"), *(Column(head=head, is_number=True) for head in heads)),
        sections=tuple(
            Section(heading=target, rows=tuple(_agreement_row(name, checks, verdicts) for name, checks in arms.items()))
            for target, arms in gathered.items()
        ),
        note="Error / bound: the largest error over its own proven bound; above 1 proves a fault. For the output of a "
        "module it is the error over the allowed error: eight times PyTorch's own error, plus one rounding. "
        "Provable scale error: the smallest error of the scale that these checks would have proven. "
        "Absolute errors never decide.",
    )


def _verdicts_shown(records: Sequence[Record]) -> list[Verdict]:
    """OK and WRONG always, the verdicts between them if they occur."""
    found = {record.verdict for record in records if isinstance(record, AgreementRecord)}
    return [verdict for verdict in Verdict if verdict in found | {Verdict.OK, Verdict.WRONG}]


def _agreement_row(name: str, checks: Sequence[AgreementRecord], verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    judged = [check for check in checks if outcome_of(check) in (Outcome.OK, Outcome.DISAGREES)]
    counts = Counter(_verdict_of(check) for check in judged)
    right = [check for check in judged if outcome_of(check) is Outcome.OK]
    proven = [check.scale_error_proven for check in right if check.scale_error_proven is not None]
    return (
        name,
        str(len(checks)),
        *(str(counts[verdict]) for verdict in verdicts),
        str(len(checks) - len(judged)),
        _largest_ratio(judged),
        _largest_error(judged),
        share(min(proven)) if proven else NOT_KNOWN,
    )


def _largest_ratio(judged: Sequence[AgreementRecord]) -> str:
    """The largest error over its bound; "-" if no check has one, as of an output of a wrong shape."""
    ratios = [bound_ratio(check) for check in judged if has_bound_ratio(check)]
    return figure(max(ratios)) if ratios else NOT_KNOWN


def _largest_error(judged: Sequence[AgreementRecord]) -> str:
    """The largest absolute error; "not finite" if any element is, because the figure would hide it."""
    if any(check.not_finite for check in judged):
        return "not finite"
    errors = [check.max_abs_error for check in judged if check.max_abs_error is not None]
    return f"{max(errors):.1e}" if errors else NOT_KNOWN


def _verdict_of(check: AgreementRecord) -> Verdict:
    """The verdict, or WRONG if the outcome contradicts an OK."""
    is_ok = outcome_of(check) is Outcome.OK
    return check.verdict if check.verdict and (is_ok or check.verdict is not Verdict.OK) else Verdict.WRONG


def export_table(records: Sequence[Record]) -> Table:
    """The exports, and the axes that were proven to be dynamic."""
    gathered: dict[str, list[tuple[str, ...]]] = {}
    for record in records:
        if isinstance(record, ExportRecord):
            gathered.setdefault(record.target, []).append(_export_row(record))
    heads = (("form", False), ("opset", True), ("graphs", True), ("nodes", True), ("operators", False))
    tail = (("dynamic axes", False), ("sizes tried", True), ("baked", False))
    has_longest = any(isinstance(record, ExportRecord) and bool(record.longest) for record in records)
    return Table(
        title="Exports",
        heading="target",
        columns=tuple(Column(head=head, is_number=is_number) for head, is_number in (*heads, *tail)),
        sections=tuple(Section(heading=target, rows=_counted(rows)) for target, rows in gathered.items()),
        note="Graphs: number of exports with the same row. Sizes tried: sizes that were not traced, run and judged"
        f"{', to the longest length' if has_longest else ''}. Baked: axes that should be dynamic and are constant.",
    )


def _counted(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Each row once, with its number of exports inserted after form and opset."""
    return tuple((*row[:2], str(number), *row[2:]) for row, number in Counter(rows).items())


def _export_row(record: ExportRecord) -> tuple[str, ...]:
    if record.outcome not in (Outcome.OK, Outcome.DISAGREES):
        return (record.form, str(record.opset or NOT_KNOWN), *[NOT_KNOWN] * 4, record.outcome.value)
    return (
        record.form,
        str(record.opset or NOT_KNOWN),
        str(sum(record.nodes.values())),
        _nodes_in_words(record.nodes),
        ", ".join(record.dynamic_axes) or "none",
        _tried(record),
        baked_words(record).removeprefix("baked: ") or "none",
    )


def _tried(record: ExportRecord) -> str:
    """The number of sizes, and the longest length among them."""
    number = NOT_KNOWN if record.sizes_tried is None else str(record.sizes_tried)
    return f"{number}, to {record.longest}" if record.longest else number


def _nodes_in_words(nodes: Mapping[str, int]) -> str:
    """The most frequent operator types: 2 MatMul, 1 Softmax, 3 others."""
    ordered = sorted(nodes.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{number} {name}" for name, number in ordered[:_MOST_NODE_TYPES]]
    others = sum(number for _, number in ordered[_MOST_NODE_TYPES:])
    return ", ".join([*shown, count(others, "other")] if others else shown) or NOT_KNOWN


def not_ok_table(records: Sequence[Record], usual: CommonFactors) -> Table:
    """Everything that is not ok, with its reason; one row per reason and arm."""
    sections: dict[str, list[tuple[str, ...]]] = {}
    for group in not_ok(records):
        arms: dict[str, list[Record]] = {}
        for record in group.records:
            what = ", ".join(word for word in (record.target, series_name(record)) if word) or record.case
            arms.setdefault(what, []).append(record)
        for what, members in arms.items():
            # The record from which the reason is taken comes first.
            ordered = sorted(members, key=lambda record: reason_of(record) != group.reason)
            cases = list(dict.fromkeys(_where(record, usual) for record in ordered))
            more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
            row = (what, f"{cases[0]}{more}", str(len(members)), group.reason)
            sections.setdefault(f"{_OUTCOME_HEADS[group.outcome]} {group.noun}s", []).append(row)
    return Table(
        title="Not ok",
        heading="outcome",
        columns=(Column(head="what"), Column(head="where"), Column(head="n", is_number=True), Column(head="why")),
        sections=tuple(Section(heading=heading, rows=tuple(rows)) for heading, rows in sections.items()),
    )


def _where(record: Record, usual: CommonFactors) -> str:
    """The case, and the inputs for which a check disagrees."""
    case = case_in_words(record, usual)
    inputs = record.inputs if isinstance(record, AgreementRecord) and record.outcome is Outcome.DISAGREES else ""
    return ", ".join(word for word in (case, inputs) if word)


def warning_table(records: Sequence[Record]) -> Table:
    """Every warning once, with the arms that have it."""
    doubted: dict[str, list[Record]] = {}
    for record in records:
        for warning in dict.fromkeys(record.warnings):
            doubted.setdefault(plain(warning), []).append(record)
    rows = tuple(
        (", ".join(sorted({series_name(one) or one.target for one in members})), str(len(members)), warning)
        for warning, members in sorted(doubted.items(), key=lambda item: -len(item[1]))
    )
    return Table(
        title="Warnings",
        heading="",
        columns=(Column(head="arm"), Column(head="records", is_number=True), Column(head="warning")),
        sections=(Section(heading="", rows=rows),) if rows else (),
    )


def located_table(records: Sequence[Record]) -> Table:
    """The first bad node of every judgement that was traced."""
    found = [record for record in records if isinstance(record, LocatedRecord)]
    rows = tuple((record.runtime, plain(site_in_words(record)), plain(record.diagnosis)) for record in found)
    return Table(
        title="Where the error begins",
        heading="model",
        columns=(Column(head="runtime"), Column(head="what disagrees"), Column(head="first bad node")),
        sections=(Section(heading=found[0].target, rows=rows),) if found else (),
        note="Each node receives the values of the reference, so that only the error it adds is judged.",
    )


def planted_table(records: Sequence[Record]) -> Table:
    """Count the kinds of fault that the checks would have caught, and name those that they would miss."""
    found = [record for record in records if isinstance(record, PlantedRecord) and record.fault]
    places: dict[tuple[str, str, str], list[PlantedRecord]] = {}
    for record in found:
        places.setdefault((record.target, record.runtime, record.site), []).append(record)
    sections: dict[str, list[tuple[str, ...]]] = {}
    for (target, runtime, site), here in places.items():
        sections.setdefault(target, []).append((runtime, plain(site), *_counts(here)))
    return Table(
        title="Planted faults",
        heading="model",
        columns=(
            Column(head="runtime"),
            Column(head="attention"),
            Column(head="caught", is_number=True),
            Column(head="not caught"),
            Column(head="not applicable"),
        ),
        sections=tuple(Section(heading=target, rows=tuple(rows)) for target, rows in sections.items()),
        note=(
            "Kinds of fault, planted in the outputs of the runtime; caught: by the inputs of these checks. "
            "Not applicable: the planted change gives the right output for all of these inputs."
        ),
    )


def _counts(records: Sequence[PlantedRecord]) -> tuple[str, str, str]:
    names = {
        outcome: [record.fault for record in records if record.outcome.counted is outcome]
        for outcome in (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED)
    }
    shown = len(names[Outcome.OK]) + len(names[Outcome.FAILED])
    missed, none = (join_words(names[outcome]) or "none" for outcome in (Outcome.FAILED, Outcome.SKIPPED))
    return f"{len(names[Outcome.OK])} of {shown}", missed, none
