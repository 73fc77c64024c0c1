"""A run compared with the file of known findings, as sentences; decides nothing.

The texts are the same for every kind of record and every command.
"""

from collections.abc import Sequence

from sdpa_onnx.core.records.records import ConformanceRecord, GateRecord, Record
from sdpa_onnx.report.compare.gate_report import place
from sdpa_onnx.report.text.labels import CommonFactors, plain, where_in_words
from sdpa_onnx.report.text.tally import reason_of
from sdpa_onnx.workflows.expected.known_findings import KnownFinding, SortedFindings

__all__ = ["known_details", "new_lines"]

# New findings that are printed one by one; the others are counted, and the report lists them.
_MOST_LINES = 10
_MOST_UNUSED = 3
_REASON_LIMIT = 160


def new_lines(found: SortedFindings) -> list[str]:
    """The first new findings in full, then a count of the others."""
    lines = [f"new: {_record_words(record)}{_beyond(record, found)}" for record in found.new[:_MOST_LINES]]
    left = len(found.new) - len(lines)
    return [*lines, *([f"new: {left} more."] if left > 0 else [])]


def known_details(found: SortedFindings) -> list[str]:
    """Entries of the file that are out of date: their finding vanished, changed, or did not run."""
    lines = [
        f"vanished: {_entry_words(entry)}: {_all(rows)} ok now. Remove the entry." for entry, rows in found.vanished
    ]
    lines += [
        f"changed: {_entry_words(entry)}: the finding is now {_how(entry, rows)}." for entry, rows in found.changed
    ]
    if len(found.unused) > _MOST_UNUSED:  # only some rows were requested
        return [*lines, f"unused: {len(found.unused)} entries: not all of their rows ran."]
    return lines + [f"unused: {_entry_words(entry)}: not all of its rows ran." for entry in found.unused]


def _beyond(record: Record, found: SortedFindings) -> str:
    """The limit of the entry that this finding exceeds; "" if it exceeds none."""
    entries = (entry for entry, _ in (*found.known, *found.changed) if entry.is_exceeded_by(record))
    entry = next(entries, None)
    return "" if entry is None else f" It is worse than the entry allows ({entry.place}: at most {entry.at_most:g})."


def _how(entry: KnownFinding, rows: Sequence[Record]) -> str:
    if any(entry.is_exceeded_by(row) for row in rows):
        return f"worse than the entry allows (at most {entry.at_most:g})"
    return "another one"


def _all(rows: Sequence[Record]) -> str:
    return "its row is" if len(rows) == 1 else f"its {len(rows)} rows are"


def _entry_words(entry: KnownFinding) -> str:
    fields = ", ".join(f"{name} {value}" for name, value in entry.fields.items() if name != "kind")
    return f"{entry.place} ({fields}; {plain(entry.why, _REASON_LIMIT)})"


def _record_words(record: Record) -> str:
    if isinstance(record, ConformanceRecord):
        what = f"{record.runtime} {record.operator} {record.opset} {record.dtype} {record.feature}"
        reason = f"{record.verdict}. {record.diagnosis or record.reason}"
    elif isinstance(record, GateRecord):
        what, reason = f"{record.gate}, {place(record)}", record.reason
    else:
        what, reason = where_in_words(record, CommonFactors()), reason_of(record)
    return f"{what}: {plain(reason, _REASON_LIMIT)}"
