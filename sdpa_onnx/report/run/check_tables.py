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
from sdpa_onnx.report.text.table import Table, text_table
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
    arms: dict[tuple[str, str], list[AgreementRecord]] = {}
    for record in records:
        if isinstance(record, AgreementRecord):
            dtype = "" if record.dtype in ("", usual.dtype) else f" {record.dtype}"
            output = ", output" if is_output_check(record) else ""
            arms.setdefault((record.target, f"{series_name(record)}{dtype}{output}"), []).append(record)
    verdicts = _verdicts_shown(records)
    return text_table(
        "Agreement with the float64 oracle",
        (
            {"target": target, "runtime, form, opset": name, **_agreement_cells(checks, verdicts)}
            for (target, name), checks in arms.items()
        ),
        heading="target",
        numbers=("checks", *verdicts, "not run", "error / bound", "abs. error", "provable scale error"),
        note="Error / bound: the largest error over its own proven bound; above 1 proves a fault. For the output of a "
        "module it is the error over the allowed error: eight times PyTorch's own error, plus one rounding. "
        "Provable scale error: the smallest error of the scale that these checks would have proven. "
        "Absolute errors never decide.",
    )


def _verdicts_shown(records: Sequence[Record]) -> list[Verdict]:
    """OK and WRONG always, the verdicts between them if they occur."""
    found = {record.verdict for record in records if isinstance(record, AgreementRecord)}
    return [verdict for verdict in Verdict if verdict in found | {Verdict.OK, Verdict.WRONG}]


def _agreement_cells(checks: Sequence[AgreementRecord], verdicts: Sequence[Verdict]) -> dict[str, str]:
    judged = [check for check in checks if outcome_of(check) in (Outcome.OK, Outcome.DISAGREES)]
    counts = Counter(map(_verdict_of, judged))
    right = (check for check in judged if outcome_of(check) is Outcome.OK)
    proven = (check.scale_error_proven for check in right if check.scale_error_proven is not None)
    return {
        "checks": str(len(checks)),
        **{verdict: str(counts[verdict]) for verdict in verdicts},
        "not run": str(len(checks) - len(judged)),
        "error / bound": _largest_ratio(judged),
        "abs. error": _largest_error(judged),
        "provable scale error": share(min(proven, default=None)),
    }


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
    """The exports, and the axes that were proven to be dynamic; those with the same row are one row."""
    exports = [record for record in records if isinstance(record, ExportRecord)]
    graphs = Counter(tuple(_export_cells(record).items()) for record in exports)
    longest = ", to the longest length" if any(record.longest for record in exports) else ""
    return text_table(
        "Exports",
        ({**dict(cells[:3]), "graphs": str(number), **dict(cells[3:])} for cells, number in graphs.items()),
        heading="target",
        numbers=("opset", "graphs", "nodes", "sizes tried"),
        note=f"Graphs: number of exports with the same row. Sizes tried: sizes that were not traced, run and judged"
        f"{longest}. Baked: axes that should be dynamic and are constant.",
    )


def _export_cells(record: ExportRecord) -> dict[str, str]:
    is_exported = record.outcome in (Outcome.OK, Outcome.DISAGREES)
    baked = baked_words(record).removeprefix("baked: ") or "none"
    known = {
        "nodes": str(sum(record.nodes.values())),
        "operators": _nodes_in_words(record.nodes),
        "dynamic axes": ", ".join(record.dynamic_axes) or "none",
        "sizes tried": _tried(record),
    }
    return {
        "target": record.target,
        "form": record.form,
        "opset": str(record.opset or NOT_KNOWN),
        **(known if is_exported else dict.fromkeys(known, NOT_KNOWN)),
        "baked": baked if is_exported else record.outcome.value,
    }


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
    rows: list[dict[str, str]] = []
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
            outcome = f"{_OUTCOME_HEADS[group.outcome]} {group.noun}s"
            where = f"{cases[0]}{more}"
            rows.append({"outcome": outcome, "what": what, "where": where, "n": str(len(members)), "why": group.reason})
    return text_table("Not ok", rows, heading="outcome", numbers=("n",))


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
    rows = (
        {
            "arm": ", ".join(sorted({series_name(one) or one.target for one in members})),
            "records": str(len(members)),
            "warning": warning,
        }
        for warning, members in sorted(doubted.items(), key=lambda item: -len(item[1]))
    )
    return text_table("Warnings", rows, numbers=("records",))


def located_table(records: Sequence[Record]) -> Table:
    """The first bad node of every judgement that was traced."""
    found = [record for record in records if isinstance(record, LocatedRecord)]
    rows = (
        {
            "model": found[0].target,
            "runtime": record.runtime,
            "what disagrees": plain(site_in_words(record)),
            "first bad node": plain(record.diagnosis),
        }
        for record in found
    )
    note = "Each node receives the values of the reference, so that only the error it adds is judged."
    return text_table("Where the error begins", rows, heading="model", note=note)


def planted_table(records: Sequence[Record]) -> Table:
    """Count the kinds of fault that the checks would have caught, and name those that they would miss."""
    places: dict[tuple[str, str, str], list[PlantedRecord]] = {}
    for record in records:
        if isinstance(record, PlantedRecord) and record.fault:
            places.setdefault((record.target, record.runtime, record.site), []).append(record)
    return text_table(
        "Planted faults",
        (
            {"model": target, "runtime": runtime, "attention": plain(site), **_fault_cells(here)}
            for (target, runtime, site), here in places.items()
        ),
        heading="model",
        numbers=("caught",),
        note="Kinds of fault, planted in the outputs of the runtime; caught: by the inputs of these checks. "
        "Not applicable: the planted change gives the right output for all of these inputs.",
    )


def _fault_cells(records: Sequence[PlantedRecord]) -> dict[str, str]:
    caught, missed, none = (
        [record.fault for record in records if record.outcome.counted is outcome]
        for outcome in (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED)
    )
    return {
        "caught": f"{len(caught)} of {len(caught) + len(missed)}",
        "not caught": join_words(missed) or "none",
        "not applicable": join_words(none) or "none",
    }
