"""The result of `convert` in words: what was written and how it was proved, or why nothing was written."""

from collections.abc import Sequence

from sdpa_onnx.core.records.findings import group_findings
from sdpa_onnx.core.records.records import AttentionRecord, FormRecord, Outcome, Subject
from sdpa_onnx.report.run.attention_text import describe_attention
from sdpa_onnx.report.run.check_rows import check_table
from sdpa_onnx.report.run.form_table import attention_names, form_table, forms_to_print, limits_of_chosen
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.run.verify_text import checks_agree, finding_details
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.text.result_text import ResultText
from sdpa_onnx.report.text.table import Table
from sdpa_onnx.report.text.tally import bound_ratio
from sdpa_onnx.workflows.check.long_sizes import reach_in_words, sizes_in_words
from sdpa_onnx.workflows.convert.convert_file import Conversion
from sdpa_onnx.workflows.convert.proof import ConversionProof
from sdpa_onnx.workflows.export.export_for_runtime import workaround_words

__all__ = ["convert_result"]

_ONE_SIZE = (
    "This is proved at one size only: the file does not run at the other sizes that were tried, because an axis is "
    "fixed inside it. `sdpa-onnx inspect` names the axis."
)
_TIMEOUT = "Use --timeout to give the runtime more time."


def convert_result(done: Conversion, forms: Sequence[FormRecord], path: str, *, opset: int | None) -> ResultText:
    """The result of a conversion.

    Args:
        done: The converted model with its proof.
        forms: The probes and timings that decided how it is written for its runtime.
        path: The file to write.
        opset: The opset that was requested, if any.
    """
    proof = done.proof
    records = [] if proof is None else proof.records
    checks = [one for one in records if one.verdict is not None]
    found = group_findings(records)
    is_late = any(one.outcome is Outcome.TIMED_OUT for one in (*forms, *records))
    details: list[str | Table] = [
        *([proof.hint] if proof is not None and proof.hint and done.path is None else ()),
        *(finding_details(found, checks) if done.path is None else ()),
        *_attention_lines(done),
        *_opset_lines(done, opset),
        *(_form_details(forms) if any(form.median_seconds for form in forms) else ()),
        *(line[:1].upper() + line[1:] for line in workaround_words(forms)),
        *(() if proof is None else _proof_lines(proof, done.attentions[0].static_axes)),
        *([_TIMEOUT] if is_late else ()),
    ]
    tables = (check_table(checks), *all_tables([*records, *forms]))
    return ResultText(verdict=_verdict(done, path), details=tuple(details), tables=tables)


def _verdict(done: Conversion, path: str) -> str:
    converted = [record for record in done.attentions if record.converted_to]
    if done.path is not None and done.proof is None:
        return f"Wrote {path}, identical to the source."
    if done.path is not None and done.proof is not None:
        into = f"{len(converted)} of {count(len(done.attentions), 'attention')}"
        right = [one for one in done.proof.records if one.verdict is not None and one.outcome is Outcome.OK]
        agree = checks_agree([one for one in right if one.subject is not Subject.READING] or right)
        return f"Wrote {path} with {into} in form {done.converted.form}: {agree}."
    if done.proof is None:
        return f"{path} was not written: no attention could be converted."
    found = group_findings(done.proof.records)
    if all(one.verdict is None for one in found):
        return f"{path} was not written: the result could not be verified. {found[0].sentence}"
    return f"{path} was not written: it differs from the source. {found[0].sentence}"


def _attention_lines(done: Conversion) -> list[str]:
    """Each kind of attention once, with its warnings."""
    lines = {record.node: f"{_description(record)}; {_note(record, done.converted.form)}" for record in done.attentions}
    alike: dict[str, list[AttentionRecord]] = {}
    for record in done.attentions:
        alike.setdefault(lines[record.node].replace(record.node, ""), []).append(record)
    found: dict[str, None] = {}
    for records in alike.values():
        names = [record.node for record in records]
        found[f"{attention_names(names)}: {lines[names[0]]}."] = None
        found |= dict.fromkeys(f"Warning: {warning}" for record in records for warning in record.warnings)
    return list(found)


def _description(record: AttentionRecord) -> str:
    return record.dialect if record.spec is None else describe_attention(record)


def _note(record: AttentionRecord, form: str) -> str:
    if record.converted_to:
        return f"converted to {record.converted_to}"
    if record.spec is None:
        return f"not converted because it cannot be read: {record.reason.rstrip('.')}"
    return f"not converted: {record.reason.rstrip('.')}" if record.reason else f"already in form {form}"


def _opset_lines(done: Conversion, opset: int | None) -> list[str]:
    if not done.converted.is_raised:
        return []
    before, after = done.converted.source.opset, done.converted.model.opset
    why = "the form requires it" if opset is None else "--opset requires it"
    return [f"The whole graph was converted from opset {before} to {after} because {why}."]


def _form_details(forms: Sequence[FormRecord]) -> list[str | Table]:
    return [form_table(forms_to_print(forms)), *(f"Warning: {line}" for line in limits_of_chosen(forms))]


def _proof_lines(proof: ConversionProof, fixed: Sequence[str]) -> list[str]:
    """At which sizes it was proved, the worst output, and what was not reached."""
    named = "; ".join(sizes_in_words(sizes) for sizes in proof.sizes if sizes)
    lines = [f"Compared with the source at {count(proof.sizes_tried, 'size')}{f' ({named})' if named else ''}."]
    if fixed:
        lines.append(f"Fixed axes: {'; '.join(fixed)}.")
    if proof.is_right and proof.sizes_tried == 1 and any(proof.sizes):
        lines.append(_ONE_SIZE)
    outputs = [one for one in proof.records if one.verdict is not None and one.subject is Subject.OUTPUT]
    worst = max(outputs, key=bound_ratio, default=None)
    if worst is not None and proof.is_right:
        lines.append(f"Worst output ({worst.site}): {worst.diagnosis}")
    reach = reach_in_words(proof.longest, proof.untested)
    return [*lines, *([reach] if reach else ()), *proof.notes]
