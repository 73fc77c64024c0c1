"""The result of `export` in words: what was written and for which sizes it is right, or why nothing was written."""

import shlex
from collections.abc import Sequence

from sdpa_onnx.core.records.findings import group_findings
from sdpa_onnx.core.records.records import AgreementRecord, Record
from sdpa_onnx.report.run.check_rows import check_table
from sdpa_onnx.report.run.form_table import form_table, forms_to_print, limits_of_chosen
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.run.verify_text import checks_agree, finding_details, proved_details, warning_details
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.text.result_text import ResultText
from sdpa_onnx.report.text.table import Table
from sdpa_onnx.workflows.export.export_for_runtime import workaround_words
from sdpa_onnx.workflows.export.export_target import ExportResult

__all__ = ["export_result"]


def export_result(exported: ExportResult, path: str, *, advice: str, note: str, is_timed: bool = False) -> ResultText:
    """The result of an export.

    Args:
        exported: The export and its judgements.
        path: The file.
        advice: If it is not written: what to do, one or two sentences.
        note: If it is written: a clause about its form; "" if there is nothing to say.
        is_timed: Whether its times follow.
    """
    records: list[Record] = [exported.record, *exported.agreement]
    timed = any(form.median_seconds for form in exported.forms)
    tables = (check_table(exported.agreement), *all_tables([*records, *exported.forms]))
    if not exported.is_right:
        found = group_findings(records)
        cause = found[0].sentence if found else f"It could not be verified on {exported.record.runtime}."
        lines = [*finding_details(found, exported.agreement), *([advice] if advice else [])]
        return ResultText(verdict=f"{path} was not written. {cause}", details=tuple(lines), tables=tables)
    details: list[str | Table] = [
        *proved_details(records),
        *([form_table(forms_to_print(exported.forms))] if timed else ()),
        *(line[:1].upper() + line[1:] for line in workaround_words(exported.forms)),
        *warning_details(records),
        *(f"Warning: {line}" for line in limits_of_chosen(exported.forms) if timed),
        *(() if is_timed else _next_lines(exported, path)),
    ]
    return ResultText(verdict=_written(exported, path, note), details=tuple(details), tables=tables)


def _next_lines(exported: ExportResult, path: str) -> list[str]:
    """The command that answers what a user asks next: is it faster than the module?"""
    target = exported.record.target
    against = ["--against", target] if exported.model.bind is not None and ":" in target else []
    return ["Next, time it:", f"  {shlex.join(['sdpa-onnx', 'bench', path, *against])}"]


def _written(exported: ExportResult, path: str, note: str) -> str:
    attentions = count(exported.attentions, "attention")
    return f"Wrote {path} ({attentions}, opset {exported.record.opset}{note}): {_right(exported.agreement)}."


def _right(agreement: Sequence[AgreementRecord]) -> str:
    judged = [one for one in agreement if one.verdict is not None]
    return checks_agree(judged) if judged else "nothing was checked"
