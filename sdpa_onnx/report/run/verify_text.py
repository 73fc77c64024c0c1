"""The result of `verify` in words: the verdict first, one cause once, then what was checked and what was not.

`export` says the same of the file that it writes.
"""

import re
from collections.abc import Iterable, Sequence

from sdpa_onnx.core.records.findings import Finding, group_findings
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Outcome, PlantedRecord, Record, Subject
from sdpa_onnx.report.run.check_rows import check_table
from sdpa_onnx.report.run.form_table import attention_names
from sdpa_onnx.report.run.limits_table import limit_in_words
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.text.labels import is_output_check, join_words, plain
from sdpa_onnx.report.text.number_text import count, share
from sdpa_onnx.report.text.result_text import ResultText
from sdpa_onnx.report.text.tally import bound_ratio

__all__ = ["checks_agree", "finding_details", "proved_details", "verify_result", "warning_details"]

# Findings and warnings that are printed; the others are counted.
_MOST_FINDINGS = 4
_MOST_WARNINGS = 4
_EVIDENCE_LIMIT = 320
# The first words of a warning. Twin: workflows/check/run_context.py.
_NOT_JUDGED = "Not judged: "
_CAUSE = re.compile(r"\s*It looks as if .+?\.(?=\s+[A-Z]|\s*$)", re.DOTALL)


def verify_result(records: Sequence[Record]) -> ResultText:
    """The result of `verify`.

    Args:
        records: All of its records.
    """
    found = group_findings([one for one in records if not isinstance(one, PlantedRecord)])
    checks = [one for one in records if isinstance(one, AgreementRecord) and one.verdict is not None]
    evidence = [*_refusals(records), *finding_details(found, checks)]
    details = [*evidence, *proved_details(records), *warning_details(records)]
    return ResultText(
        verdict=_verdict(found, checks, records),
        details=tuple(details),
        tables=(check_table(checks), *all_tables(records)),
    )


def checks_agree(checks: Sequence[AgreementRecord]) -> str:
    """Count checks that agree: all 13 checks agree on ort-cpu."""
    where = join_words(list(dict.fromkeys(check.runtime for check in checks)))
    agree = "the one check agrees" if len(checks) == 1 else f"all {len(checks)} checks agree"
    return f"{agree} on {where}"


def finding_details(findings: Sequence[Finding], checks: Sequence[AgreementRecord]) -> list[str]:
    """The evidence of each finding with the command that repeats it; a verdict only from the second finding on."""
    lines = []
    for number, finding in enumerate(findings[:_MOST_FINDINGS]):
        lines += [] if number == 0 else [finding.sentence]
        lines += [text for text in (_evidence(finding, checks), _located(finding)) if text]
        # Outputs are compared with the module only where it is given, which no record names.
        is_repeatable = bool(getattr(finding.worst, "axes", None)) and not is_output_check(finding.worst)
        command = finding.repeat() if is_repeatable else ""
        lines += ["Run the worst check alone:", f"  {command}"] if command and number == 0 else []
    if len(findings) > _MOST_FINDINGS:
        left = sum(len(one.records) for one in findings[_MOST_FINDINGS:])
        lines.append(f"{count(len(findings) - _MOST_FINDINGS, 'more finding')} ({count(left, 'record')}): --verbose.")
    return lines


def _axes_words(record: ExportRecord) -> str:
    """What was proved of the axes of a right file; "" if it has none or none was run."""
    if not record.dynamic_axes or not record.sizes_tried:
        return ""
    noun, verb = ("The axis", "is") if len(record.dynamic_axes) == 1 else ("The axes", "are")
    longest = f", to length {record.longest}" if record.longest else ""
    sizes = f"{count(record.sizes_tried, 'size')} that {'was' if record.sizes_tried == 1 else 'were'} not traced"
    return f"{noun} {join_words(list(record.dynamic_axes))} {verb} dynamic: right at {sizes}{longest}."


def warning_details(records: Iterable[Record]) -> list[str]:
    """Every warning once; what is not judged says so itself."""
    found = list(dict.fromkeys(plain(warning) for record in records for warning in record.warnings))
    lines = [text if text.startswith(_NOT_JUDGED) else f"Warning: {text}" for text in found[:_MOST_WARNINGS]]
    return lines if len(found) <= _MOST_WARNINGS else [*lines, f"{count(len(found) - _MOST_WARNINGS, 'more warning')}."]


def _verdict(found: Sequence[Finding], checks: Sequence[AgreementRecord], records: Sequence[Record]) -> str:
    if found:
        more = f" {count(len(found) - 1, 'more finding')} below." if len(found) > 1 else ""
        return f"{found[0].sentence}{more}"
    if checks:
        sentence = checks_agree(checks)
        planted, missed = _planted(records)
        doubt = f", but would miss {len(missed)} of {count(len(planted), 'planted fault')}" if missed else ""
        return f"{sentence[0].upper()}{sentence[1:]}{doubt}."
    where = join_words(sorted({record.runtime for record in records}))
    return f"Nothing was checked on {where}." if where else "Nothing was checked."


def _refusals(records: Iterable[Record]) -> list[str]:
    """Runtimes that did not run the model, each once."""
    refused = (one for one in records if isinstance(one, AgreementRecord) and one.outcome is Outcome.UNSUPPORTED)
    return list(dict.fromkeys(f"Not run on {one.runtime}: {_stopped(one.reason)}" for one in refused))


def _evidence(finding: Finding, checks: Sequence[AgreementRecord]) -> str:
    """How many checks disagree, and the worst with its evidence; "" if the sentence already says it."""
    worst = finding.worst
    if not isinstance(worst, AgreementRecord) or worst.verdict is None:
        return "" if plain(worst.reason).rstrip(".") == finding.cause else _stopped(worst.reason)
    here = [one for one in checks if (one.target, one.runtime) == (worst.target, worst.runtime)]
    wrong = sum(isinstance(one, AgreementRecord) and one.outcome is Outcome.DISAGREES for one in finding.records)
    evidence = plain(_CAUSE.sub("", worst.diagnosis), _EVIDENCE_LIMIT)
    if evidence.rstrip(".").casefold() == finding.cause.casefold():
        evidence = ""
    inputs = f" ({', '.join(filter(None, (worst.inputs, _axes(worst))))})" if worst.inputs else ""
    if not evidence and wrong == 1:
        return ""
    counted = f"{wrong} of {count(len(here), 'check')} {'disagrees' if wrong == 1 else 'disagree'}"
    return f"{counted}, the worst{inputs}: {evidence}" if evidence else f"{counted}."


def _axes(record: AgreementRecord) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in record.axes.items())


def _located(finding: Finding) -> str:
    located = finding.located
    return "" if located is None or located.outcome is Outcome.OK else plain(located.diagnosis, _EVIDENCE_LIMIT)


def proved_details(records: Sequence[Record]) -> list[str]:
    """What is right: the axes, the largest error, the sensitivity, the planted faults; and a scale that is unusual."""
    axes = [one for one in records if isinstance(one, ExportRecord) and one.outcome is Outcome.OK]
    lines = list(dict.fromkeys(text for one in axes if (text := _axes_words(one))))
    lines += dict.fromkeys(f"It {limit_in_words(limit)}." for one in axes for limit in one.limits)
    checks = [one for one in records if isinstance(one, AgreementRecord) and one.verdict is not None]
    return [*lines, *_scale_words(checks), *_error_words(checks), *_planted_words(records)]


def _scale_words(checks: Sequence[AgreementRecord]) -> list[str]:
    """Scales that follow no known rule, which no judgement of a runtime can find wrong."""
    sites: dict[str, dict[str, None]] = {}
    for one in checks:
        if one.scale_note and one.subject is Subject.ATTENTION:
            sites.setdefault(one.scale_note, {})[one.site] = None
    known = any(map(is_output_check, checks))
    ask = "" if known else " Only the module can show whether that is intended: --against FILE.py:Class."
    verbs = {note: "has" if len(names) == 1 else "have" for note, names in sites.items()}
    return [f"{attention_names([*names])} {verbs[note]} {note}.{ask}" for note, names in sites.items()]


def _error_words(checks: Sequence[AgreementRecord]) -> list[str]:
    """The largest error and the sensitivity, if every check agrees: next to a fault they are no comfort."""
    proven = [one for one in checks if not is_output_check(one) and one.max_bound_ratio is not None]
    if not proven or any(one.outcome is not Outcome.OK for one in checks):
        return []
    largest = share(max(map(bound_ratio, proven)))
    scales = [one.scale_error_proven for one in proven if one.scale_error_proven is not None]
    found = f" A runtime whose scale is {share(min(scales))} off the file's own would be found." if scales else ""
    return [f"Largest rounding error: {largest} of what is proven possible.{found}"]


def _planted_words(records: Iterable[Record]) -> list[str]:
    """How many planted faults the inputs show, and those that they do not."""
    planted, missed = _planted(records)
    lines = [f"Not found with these inputs: {one.says}." for one in missed[:_MOST_FINDINGS]]
    if len(missed) > _MOST_FINDINGS:
        lines.append(f"{count(len(missed) - _MOST_FINDINGS, 'more fault')} would be missed: --verbose.")
    found = f"{len(planted) - len(missed)} of {count(len(planted), 'planted fault')} would be found."
    return [found, *lines] if planted else []


def _planted(records: Iterable[Record]) -> tuple[list[PlantedRecord], list[PlantedRecord]]:
    """The faults that change an output, and those of them that the inputs do not show."""
    planted = [one for one in records if isinstance(one, PlantedRecord) and one.outcome is not Outcome.SKIPPED]
    return planted, [one for one in planted if one.outcome is not Outcome.OK]


def _stopped(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
