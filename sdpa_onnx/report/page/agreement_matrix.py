"""Agreement as a matrix, case by arm, and the evidence behind every cell; judges nothing."""

from collections.abc import Callable, Mapping, Sequence

from sdpa_onnx.core.records.findings import Finding
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Record, Verdict
from sdpa_onnx.report.page.content import (
    PageBlock,
    PageFold,
    PageMatrix,
    PageMatrixCell,
    PageMatrixRow,
    PageTable,
    PageTone,
)
from sdpa_onnx.report.run.repeat_command import repeat_command
from sdpa_onnx.report.text.labels import CaseFactor, CommonFactors, case_in_words, is_output_check, plain, series_name
from sdpa_onnx.report.text.number_text import NOT_KNOWN, count, figure
from sdpa_onnx.report.text.table import text_table
from sdpa_onnx.report.text.tally import bound_ratio, has_bound_ratio, outcome_of, reason_of
from sdpa_onnx.report.timing.ratio_points import causal_targets

__all__ = ["agreement_blocks"]

# Greatest number of rows; those that are not ok come first when there are more.
_MOST_ROWS = 60
_REASON_LIMIT = 240
_NOTE = (
    "Each cell: the number of checks. \N{CHECK MARK} all agree, \N{MULTIPLICATION X} proven wrong, ? suspicious, "
    "! failed, \N{EN DASH} unsupported or skipped, blank: not tested. A cell leads to its evidence."
)

Checks = list[AgreementRecord]


def agreement_blocks(records: Sequence[Record], usual: CommonFactors) -> list[PageBlock]:
    """The matrix, then one closed table of evidence per row."""
    causal = causal_targets(records)
    gathered: dict[str, dict[str, Checks]] = {}
    arms: dict[str, None] = {}
    for record in records:
        if isinstance(record, AgreementRecord):
            arm = series_name(record) or "(not run)"
            arms.setdefault(arm)
            gathered.setdefault(_row_label(record, usual, causal), {}).setdefault(arm, []).append(record)
    if not gathered:
        return []
    labels = _shown(gathered)
    anchors = {label: f"evidence-{number}" for number, label in enumerate(labels, 1)}
    cut = len(gathered) - len(labels)
    note = f"{_NOTE} {count(cut, 'more row')} without a finding left out." if cut else _NOTE
    matrix = PageMatrix(
        title="Agreement, case by arm",
        corner="case",
        heads=tuple(arms),
        rows=tuple(_row(label, gathered[label], tuple(arms), anchors[label]) for label in labels),
        note=note,
    )
    evidence = [_evidence(label, gathered[label], anchors[label], usual) for label in labels]
    return [matrix, PageFold(title="Evidence, with the command that repeats it", blocks=tuple(evidence))]


def _row_label(record: AgreementRecord, usual: CommonFactors, causal: frozenset[str]) -> str:
    """Target and case without batch and length: the sizes at which it was checked are in the evidence."""
    if is_output_check(record):
        return f"{record.target}, output"
    case = case_in_words(record, usual, without=[CaseFactor.BATCH, CaseFactor.LENGTH])
    words = [record.target, *case.split(", ")]
    if record.spec is None and record.target in causal:
        words.append("causal")
    return ", ".join(dict.fromkeys(word for word in words if word)) or record.case


def _shown(gathered: Mapping[str, Mapping[str, Checks]]) -> list[str]:
    if len(gathered) <= _MOST_ROWS:
        return list(gathered)

    def is_ok(label: str) -> bool:
        return all(_worst(checks)[0] is PageTone.GOOD for checks in gathered[label].values())

    kept = set(sorted(gathered, key=is_ok)[:_MOST_ROWS])
    return [label for label in gathered if label in kept]


def _row(label: str, arms: Mapping[str, Checks], heads: Sequence[str], anchor: str) -> PageMatrixRow:
    return PageMatrixRow(
        head=label,
        cells=tuple(_cell(f"{label}, {head}", arms[head], anchor) if head in arms else None for head in heads),
    )


def _cell(where: str, checks: Checks, anchor: str) -> PageMatrixCell:
    tone, mark, words, number = _worst(checks)
    of = f"{number} of {len(checks)}" if number < len(checks) else f"{len(checks)}"
    return PageMatrixCell(
        text=f"{mark} {of}",
        label=f"{where}: {number} of {count(len(checks), 'check')} {words}",
        tone=tone,
        target=anchor,
    )


def _worst(checks: Checks) -> tuple[PageTone, str, str, int]:
    """Tone, mark, text and number of the worst verdict among checks."""
    kinds: tuple[tuple[Callable[[AgreementRecord], bool], PageTone, str, str], ...] = (
        (_is_wrong, PageTone.BAD, "\N{MULTIPLICATION X}", "wrong"),
        (lambda one: outcome_of(one) is Outcome.DISAGREES, PageTone.DOUBT, "?", "suspicious"),
        (lambda one: outcome_of(one) is Outcome.FAILED, PageTone.BAD, "!", "failed"),
        (lambda one: outcome_of(one) is not Outcome.OK, PageTone.NEUTRAL, "\N{EN DASH}", "not run"),
    )
    for is_one, tone, mark, words in kinds:
        number = sum(map(is_one, checks))
        if number:
            return tone, mark, words, number
    return PageTone.GOOD, "\N{CHECK MARK}", "agree", len(checks)


def _is_wrong(check: AgreementRecord) -> bool:
    return outcome_of(check) is Outcome.DISAGREES and check.verdict is not Verdict.SUSPICIOUS


def _evidence(label: str, arms: Mapping[str, Checks], anchor: str, usual: CommonFactors) -> PageTable:
    """The worst check of each arm, with the command that repeats it."""
    table = text_table(
        label,
        ({"arm": arm, **_evidence_cells(checks, usual)} for arm, checks in arms.items()),
        numbers=("checks", "error / bound", "abs. error"),
        note="The check of each arm that is nearest to its limit, or beyond it.",
    )
    return PageTable(table=table, anchor=anchor, is_folded=True, commands=frozenset({"repeat"}), total=table.rows)


def _evidence_cells(checks: Checks, usual: CommonFactors) -> dict[str, str]:
    worst = max(checks, key=lambda one: (outcome_of(one) is not Outcome.OK, bound_ratio(one)))
    is_ok = outcome_of(worst) is Outcome.OK
    return {
        "checks": _cell("", checks, "").text,
        "error / bound": figure(bound_ratio(worst)) if has_bound_ratio(worst) else NOT_KNOWN,
        "abs. error": NOT_KNOWN if worst.max_abs_error is None else f"{worst.max_abs_error:.1e}",
        "inputs": f"{worst.inputs or NOT_KNOWN}, seed {worst.seed}",
        "where": case_in_words(worst, usual),
        "evidence": plain(worst.diagnosis if is_ok else reason_of(worst), _REASON_LIMIT) or NOT_KNOWN,
        "repeat": repeat_command(_alone(worst)) or NOT_KNOWN,
    }


def _alone(check: AgreementRecord) -> Finding:
    """One check as a finding, to repeat it whatever its verdict is."""
    return Finding(
        cause="",
        outcome=check.outcome,
        verdict=check.verdict,
        target=check.target,
        runtime=check.runtime,
        worst=check,
        records=(check,),
    )
