"""The findings of a run as sentences: the first lines, and under headings what only the report has.

Each statement follows from the records and is said once. The sentences on timing are in timing/findings.py, those on
saturation in saturation/findings.py.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from sdpa_onnx.core.records.findings import Finding, group_findings
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ExportRecord,
    Outcome,
    Record,
    Subject,
    TimingRecord,
    Verdict,
)
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.saturation.findings import saturation_records
from sdpa_onnx.report.text.known_summary import known_summary
from sdpa_onnx.report.text.labels import (
    CommonFactors,
    is_output_check,
    join_words,
    plain,
    series_name,
    site_in_words,
    usual_factors,
    where_in_words,
)
from sdpa_onnx.report.text.number_text import count, figure, share
from sdpa_onnx.report.text.tally import FailureGroup, bound_ratio, has_bound_ratio, kind_noun, not_ok, outcome_of
from sdpa_onnx.report.timing.alarms import is_alarm
from sdpa_onnx.report.timing.findings import timing_findings
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = [
    "EXPORTS",
    "NUMBERS",
    "TIMES",
    "WARNINGS",
    "FindingSection",
    "finding_sections",
    "findings",
    "first_findings",
    "wrong_findings",
]

NUMBERS, EXPORTS, TIMES, WARNINGS = "Numbers", "Exports", "Times", "Warnings"
"""Headings of the sections of a report."""

# Reasons, warnings and places that are named; the others are counted, and the tables list them.
_MOST_REASONS, _MOST_CAUSES = 2, 2
_MOST_LINES = 4
_REASON_LIMIT = 160

_OUTCOME_WORDS = {
    Outcome.DISAGREES: "disagree",
    Outcome.FAILED: "failed",
    Outcome.UNSUPPORTED: "unsupported",
    Outcome.SKIPPED: "skipped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingSection:
    """Findings under one heading of the report."""

    title: str
    sentences: tuple[str, ...]


def findings(records: Sequence[Record], header: RunHeader, *, known: SortedFindings | None = None) -> list[str]:
    """All findings without their headings, for a page that has sections of its own: the first lines first."""
    others = [sentence for section in finding_sections(records) for sentence in section.sentences]
    return [*first_findings(records, header, known=known), *others]


def first_findings(records: Sequence[Record], header: RunHeader, *, known: SortedFindings | None = None) -> list[str]:
    """The first lines: whether the numbers are right, everything that is not ok, and how much of it is known."""
    usual = usual_factors(records)
    return [
        _status_line(records, header),
        *_other_wrong_lines(records),
        *([known_summary(known)] if known is not None else []),
        *_not_ok_lines(records, usual),
    ]


def finding_sections(records: Sequence[Record]) -> list[FindingSection]:
    """The other findings; sections without a sentence are left out."""
    usual = usual_factors(records)
    sections = (
        (NUMBERS, [*_worst_lines(records, usual), *_margin_lines(records, usual)]),
        (EXPORTS, _export_lines(records)),
        (TIMES, timing_findings(records, usual)),
        (WARNINGS, _warning_lines(records, usual)),
    )
    return [FindingSection(title=title, sentences=tuple(sentences)) for title, sentences in sections if sentences]


def _status_line(records: Sequence[Record], header: RunHeader) -> str:
    sentences = []
    if not header.is_finished:
        sentences.append(f"This run is not finished: {header.done_cells} of {header.planned_cells} cells are done.")
    if not records:
        return " ".join([*sentences, "There are no records: nothing was checked and nothing was timed."])
    sentences.append(_agreement_sentence(records))
    for label, outcomes in (("Not ok", set(Outcome) - {Outcome.SKIPPED}), ("Skipped", {Outcome.SKIPPED})):
        rest = _rest_in_words(records, outcomes)
        if rest:
            sentences.append(f"{label}: {rest}.")
    if header.skipped_kinds:
        sentences.append(f"Left out: {join_words(header.skipped_kinds)} (--skip).")
    return " ".join(sentences)


def _agreement_sentence(records: Sequence[Record]) -> str:
    checks = _judged(records)
    cells = _saturation_in_words(records)
    if not checks:
        return f"{cells} No output was checked against the float64 oracle.".lstrip()
    wrong = wrong_findings(records)
    if wrong:
        return _wrong_sentence(wrong[0], len(checks))
    agree = "The one check agrees" if len(checks) == 1 else f"All {len(checks)} checks agree"
    proven = [check for check in checks if not is_output_check(check)]
    if not proven:
        return f"{agree} with a float64 run of the module. {cells}".rstrip()
    worst = max(proven, key=bound_ratio)
    largest = f" (largest error: {share(bound_ratio(worst))} of its proven bound)" if has_bound_ratio(worst) else ""
    return f"{agree} with the float64 oracle{largest}. {cells}".rstrip()


def _other_wrong_lines(records: Sequence[Record]) -> list[str]:
    """The other causes, each once."""
    others = wrong_findings(records)[1:]
    checks = len(_judged(records))
    lines = [_wrong_sentence(finding, checks) for finding in others[:_MOST_CAUSES]]
    left = others[_MOST_CAUSES:]
    return [*lines, *([f"{count(len(left), 'more cause')} of wrong numbers in the report."] if left else [])]


def _saturation_in_words(records: Sequence[Record]) -> str:
    """Count the saturation cells that are ok: of those that ran, whose measures are compared with predictions."""
    cells = [cell for cell in saturation_records(records) if cell.outcome in (Outcome.OK, Outcome.DISAGREES)]
    if not cells:
        return ""
    ok = sum(outcome_of(cell) is Outcome.OK for cell in cells)
    if ok == len(cells):
        return f"All {count(ok, 'saturation cell')} match theory." if ok > 1 else "The saturation cell matches theory."
    if len(cells) == 1:
        return "The saturation cell does not match theory."
    return f"{ok} of {count(len(cells), 'saturation cell')} {'matches' if ok == 1 else 'match'} theory."


def _wrong_sentence(finding: Finding, checks: int) -> str:
    """One cause in words: WRONG: the scale is off by 1.8 % in sdpa, ort-cpu attention 23 (13 of 282 checks)."""
    bad = sum(isinstance(record, AgreementRecord) for record in finding.records)
    where = ", ".join(word for word in (finding.target, series_name(finding.worst)) if word)
    cause = plain(finding.cause, _REASON_LIMIT)
    if not finding.is_unproven_output:
        label = "WRONG" if finding.verdict is Verdict.WRONG else "Suspicious"
        cause = f"{label}: {cause[:1].lower()}{cause[1:]}"
    return f"{cause} ({where}; {bad} of {count(checks, 'check')})."


def wrong_findings(records: Sequence[Record]) -> list[Finding]:
    """The causes for which checks disagree, proven faults first."""
    checks = (one for one in records if isinstance(one, AgreementRecord))
    if not any(outcome_of(check) is Outcome.DISAGREES for check in checks):
        return []
    found = group_findings([_counted(one) if isinstance(one, AgreementRecord) else one for one in records])
    return [one for one in found if isinstance(one.worst, AgreementRecord) and one.outcome is Outcome.DISAGREES]


def _counted(check: AgreementRecord) -> AgreementRecord:
    """The check as it counts: wrong if its own figures contradict its outcome."""
    is_finite = math.isfinite(bound_ratio(check))
    if outcome_of(check) is not Outcome.DISAGREES or (check.outcome is Outcome.DISAGREES and is_finite):
        return check
    return msgspec.structs.replace(
        check,
        outcome=Outcome.DISAGREES,
        verdict=Verdict.WRONG,
        not_finite=check.not_finite if is_finite else check.not_finite or 1,
    )


def _rest_in_words(records: Sequence[Record], outcomes: Collection[Outcome]) -> str:
    """Count what has one of these outcomes, besides the wrong checks, which the sentence before counts."""
    judged = {id(check) for check in _judged(records)}
    counts: Counter[tuple[str, Outcome]] = Counter()
    for group in not_ok(records):
        if group.outcome in outcomes:
            counts[group.noun, group.outcome] += sum(id(record) not in judged for record in group.records)
    return join_words(
        [
            count(n, noun) if outcome is Outcome.SKIPPED else f"{count(n, noun)} {_verb(outcome, n)}"
            for (noun, outcome), n in counts.items()
            if n
        ]
    )


def _verb(outcome: Outcome, number: int) -> str:
    if outcome is Outcome.DISAGREES and number == 1:
        return "disagrees"
    return _OUTCOME_WORDS[outcome]


def _worst_lines(records: Sequence[Record], usual: CommonFactors) -> list[str]:
    """The evidence of every cause, enough to repeat it."""
    found = wrong_findings(records)
    if not found:
        return []
    timed = any(isinstance(record, TimingRecord) for record in records)
    invalid = ["Times of wrong outputs are not valid until the outputs are right."] if timed else []
    return [*(_evidence_line(finding, usual) for finding in found), *invalid]


def _evidence_line(finding: Finding, usual: CommonFactors) -> str:
    worst = finding.worst
    if not isinstance(worst, AgreementRecord):
        raise TypeError("A wrong number is a finding of an agreement record.")
    inputs = f", inputs '{worst.inputs}'" if worst.inputs else ""
    noun = "attention " if worst.subject is Subject.ATTENTION else ""
    site = f", {noun}{site_in_words(worst)}" if worst.site else ""
    error = "no error in numbers" if worst.max_abs_error is None else f"largest error {figure(worst.max_abs_error)}"
    limit = "the limit for the output of a module" if is_output_check(worst) else "its proven bound"
    times = ""
    if worst.not_finite or math.isnan(worst.max_bound_ratio or 0.0):
        times = ", not finite where the oracle is"
    elif has_bound_ratio(worst):
        times = f", {figure(bound_ratio(worst))} times {limit}"
    reason = plain(worst.diagnosis or worst.reason, _REASON_LIMIT)
    where = where_in_words(worst, usual)
    return f"{finding.cause}. Worst: {error}{times} ({where}{site}{inputs}, seed {worst.seed}). {reason}".rstrip()


def _not_ok_lines(records: Sequence[Record], usual: CommonFactors) -> list[str]:
    """One line per reason; wrong checks have lines of their own."""
    groups = [group for group in not_ok(records) if (group.noun, group.outcome) != ("check", Outcome.DISAGREES)]
    lines = [_not_ok_line(group, usual) for group in groups[:_MOST_REASONS]]
    left = groups[_MOST_REASONS:]
    if left:
        cells = sum(len(group.records) for group in left)
        lines.append(f"{count(len(left), 'more reason')} ({count(cells, 'record')}) in the report.")
    return lines


def _not_ok_line(group: FailureGroup, usual: CommonFactors) -> str:
    where = where_in_words(group.records[0], usual)
    more = f" and {len(group.records) - 1} more" if len(group.records) > 1 else ""
    number = len(group.records)
    return f"{count(number, group.noun)} {_verb(group.outcome, number)} ({where}{more}): {_sentence(group.reason)}"


def _margin_lines(records: Sequence[Record], usual: CommonFactors) -> list[str]:
    """Where the largest error is if all agree, and the scale error that the least sensitive check would have proven."""
    checks = [check for check in _judged(records) if not is_output_check(check) and has_bound_ratio(check)]
    worst = max(checks, key=bound_ratio, default=None)
    if worst is None or wrong_findings(records):
        return _sharpness_lines(records)
    largest = f"The largest error is {figure(bound_ratio(worst))} of its proven bound ({where_in_words(worst, usual)})."
    return [largest, *_sharpness_lines(records)]


def _sharpness_lines(records: Sequence[Record]) -> list[str]:
    sharpest: dict[tuple[str, str], float] = {}
    for check in _judged(records):
        if outcome_of(check) is Outcome.OK and not is_output_check(check):
            place = (check.target, series_name(check))
            proven = float("inf") if check.scale_error_proven is None else check.scale_error_proven
            sharpest[place] = min(sharpest.get(place, float("inf")), proven)
    weakest = max(sharpest.values(), default=float("inf"))
    if weakest == float("inf"):
        return []
    return [
        f"Sensitivity: the checks would have proven a scale error of {share(weakest)} for every target and runtime."
    ]


def _export_lines(records: Sequence[Record]) -> list[str]:
    """What was proven about the dynamic axes of the exports that are right."""
    right = [record for record in records if isinstance(record, ExportRecord) and outcome_of(record) is Outcome.OK]
    tried = [record.sizes_tried for record in right if record.dynamic_axes and record.sizes_tried]
    if not tried:
        return []
    which = f"All {len(tried)} exports" if len(tried) == len(right) > 1 else count(len(tried), "export")
    sizes = f"{min(tried)}" if min(tried) == max(tried) else f"{min(tried)} to {max(tried)}"
    return [f"{which} ran at sizes that were not traced ({sizes} sizes each); no axis is baked."]


def _warning_lines(records: Sequence[Record], usual: CommonFactors) -> list[str]:
    """Warnings, each once, with the number of records that have it; alarms on timings are not repeated."""
    doubted: dict[str, list[Record]] = {}
    for record in records:
        for warning in dict.fromkeys(record.warnings):
            if not (isinstance(record, TimingRecord) and is_alarm(warning)):
                doubted.setdefault(plain(warning), []).append(record)
    groups = sorted(doubted.items(), key=lambda group: -len(group[1]))
    lines = [_warning_line(warning, members, usual) for warning, members in groups[:_MOST_LINES]]
    if len(groups) > _MOST_LINES:
        lines.append(f"{count(len(groups) - _MOST_LINES, 'more warning')} in the table 'Warnings'.")
    return lines


def _warning_line(warning: str, members: Sequence[Record], usual: CommonFactors) -> str:
    if len(members) == 1:
        return f"Warning ({kind_noun(members[0])}, {where_in_words(members[0], usual)}): {_sentence(warning)}"
    names = sorted({series_name(record) or record.target for record in members})
    shown = join_words(names) if len(names) <= _MOST_LINES else count(len(names), "arm")
    return f"Warning on {len(members)} records ({shown}): {_sentence(warning)}"


def _sentence(text: str) -> str:
    """A reason cut to the length of a line, with a full stop."""
    short = plain(text, _REASON_LIMIT)
    return short if short.endswith((".", "!", "?")) else f"{short}."


def _judged(records: Sequence[Record]) -> list[AgreementRecord]:
    return [
        record
        for record in records
        if isinstance(record, AgreementRecord) and outcome_of(record) in (Outcome.OK, Outcome.DISAGREES)
    ]
