"""The tables of a report as text cells, shared by terminal and Markdown.

It knows no line widths, colours or markup. The tables of saturation are in saturation/tables.py, those of timing in
timing/tables.py and timing/cost_tables.py.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ExportRecord,
    Outcome,
    Record,
    SaturationRecord,
    Verdict,
)
from sdpa_onnx.report.run.form_table import form_table
from sdpa_onnx.report.run.judge_tables import located_table, planted_table
from sdpa_onnx.report.saturation.tables import prediction_table, saturation_table
from sdpa_onnx.report.text.labels import (
    CommonFactors,
    case_in_words,
    is_output_check,
    plain,
    series_name,
    usual_factors,
)
from sdpa_onnx.report.text.number_text import count, figure, share
from sdpa_onnx.report.text.table import Column, Section, Table
from sdpa_onnx.report.text.tally import baked_words, bound_ratio, not_ok, outcome_of, reason_of
from sdpa_onnx.report.timing.comparisons import comparisons
from sdpa_onnx.report.timing.cost_tables import circumstances_table, cost_table, work_table
from sdpa_onnx.report.timing.tables import timing_table

__all__ = ["all_tables"]

# Cell for "does not apply here"; the reason is printed elsewhere.
_NONE = "-"
_MOST_NODE_TYPES = 4

_OUTCOME_HEADS = {
    Outcome.DISAGREES: "disagreeing",
    Outcome.FAILED: "failed",
    Outcome.UNSUPPORTED: "unsupported",
    Outcome.SKIPPED: "skipped",
}


def all_tables(records: Sequence[Record], ceilings: Mapping[str, float] | None = None) -> list[Table]:
    """Build every table that has a row, in the order of a report.

    Args:
        ceilings: Ceilings measured in the same run, as in `RunHeader`; None = not known.
    """
    usual = usual_factors(records)
    saturation = [record for record in records if isinstance(record, SaturationRecord)]
    timed = comparisons(records)
    tables = [
        not_ok_table(records, usual),
        located_table(records),
        timing_table(timed, usual),
        cost_table(timed, usual),
        work_table(timed, usual, ceilings or {}),
        circumstances_table(timed),
        agreement_table(records, usual),
        planted_table(records),
        export_table(records),
        form_table(records),
        saturation_table(saturation),
        prediction_table(saturation),
        warning_table(records),
    ]
    return [table for table in tables if table.rows]


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
    proven = [check.scale_error_proven for check in right if check.scale_error_proven >= 0]
    return (
        name,
        str(len(checks)),
        *(str(counts[verdict]) for verdict in verdicts),
        str(len(checks) - len(judged)),
        figure(max(bound_ratio(check) for check in judged)) if judged else _NONE,
        _largest_error(judged) if judged else _NONE,
        share(min(proven)) if proven else _NONE,
    )


def _largest_error(judged: Sequence[AgreementRecord]) -> str:
    """The largest absolute error; "not finite" if any element is, because the figure would hide it."""
    if any(check.not_finite for check in judged):
        return "not finite"
    return f"{max(check.max_abs_error for check in judged):.1e}"


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
    return Table(
        title="Exports",
        heading="target",
        columns=tuple(Column(head=head, is_number=is_number) for head, is_number in (*heads, *tail)),
        sections=tuple(Section(heading=target, rows=_counted(rows)) for target, rows in gathered.items()),
        note="Graphs: number of exports with the same row. Sizes tried: sizes that were not traced, run and judged. "
        "Baked: axes that should be dynamic and are constant.",
    )


def _counted(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Each row once, with its number of exports inserted after form and opset."""
    return tuple((*row[:2], str(number), *row[2:]) for row, number in Counter(rows).items())


def _export_row(record: ExportRecord) -> tuple[str, ...]:
    if record.outcome not in (Outcome.OK, Outcome.DISAGREES):
        return (record.form, str(record.opset or _NONE), *[_NONE] * 4, record.outcome.value)
    return (
        record.form,
        str(record.opset or _NONE),
        str(sum(record.nodes.values())),
        _nodes_in_words(record.nodes),
        ", ".join(record.dynamic_axes) or "none",
        str(record.sizes_tried),
        baked_words(record).removeprefix("baked: ") or "none",
    )


def _nodes_in_words(nodes: Mapping[str, int]) -> str:
    """The most frequent operator types: 2 MatMul, 1 Softmax, 3 others."""
    ordered = sorted(nodes.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{number} {name}" for name, number in ordered[:_MOST_NODE_TYPES]]
    others = sum(number for _, number in ordered[_MOST_NODE_TYPES:])
    return ", ".join([*shown, count(others, "other")] if others else shown) or _NONE


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
