"""How a run stands beside the file of known findings, in sentences; decides nothing.

The same words for every kind of record and every command.
"""

from collections.abc import Sequence

from sdpa_onnx.core.records.records import ConformanceRecord, GateRecord, Record
from sdpa_onnx.report.compare.gate_report import place
from sdpa_onnx.report.text.labels import CommonFactors, plain, where_in_words
from sdpa_onnx.report.text.tally import reason_of
from sdpa_onnx.workflows.expected.known_findings import KnownFinding, SortedFindings

__all__ = ["known_details", "new_lines"]

# New findings that are told one by one; the others are counted, and stand in the report.
_MOST_LINES = 10
_MOST_UNUSED = 3
_REASON_LIMIT = 160


def new_lines(found: SortedFindings) -> list[str]:
    """Each new finding, the first ones in words."""
    lines = [f"new: {_record_words(record)}{_beyond(record, found)}" for record in found.new[:_MOST_LINES]]
    left = len(found.new) - len(lines)
    return [*lines, *([f"new: {left} more."] if left > 0 else [])]


def known_details(found: SortedFindings) -> list[str]:
    """What of the file is out of date: gone, of another kind now, or about nothing that ran."""
    lines = [f"vanished: {_entry_words(entry)}: {_all(rows)} well now. Take it out." for entry, rows in found.vanished]
    lines += [
        f"changed: {_entry_words(entry)}: what is bad there now is {_how(entry, rows)}."
        for entry, rows in found.changed
    ]
    if len(found.unused) > _MOST_UNUSED:  # only some rows were asked for
        return [*lines, f"unused: {len(found.unused)} entries: no row of them ran, or not all."]
    return lines + [f"unused: {_entry_words(entry)}: no row of it ran, or not all." for entry in found.unused]


def _beyond(record: Record, found: SortedFindings) -> str:
    """What an entry would have allowed of this finding, "" if none is of it."""
    entries = (entry for entry, _ in (*found.known, *found.changed) if entry.is_exceeded_by(record))
    entry = next(entries, None)
    return "" if entry is None else f" It is worse than the entry allows ({entry.place}: at most {entry.at_most:g})."


def _how(entry: KnownFinding, rows: Sequence[Record]) -> str:
    if any(entry.is_exceeded_by(row) for row in rows):
        return f"worse than the entry allows (at most {entry.at_most:g})"
    return "not this"


def _all(rows: Sequence[Record]) -> str:
    return "its row is" if len(rows) == 1 else f"its {len(rows)} rows are"


def _entry_words(entry: KnownFinding) -> str:
    fields = ", ".join(f"{name} {value}" for name, value in entry.fields.items() if name != "kind")
    return f"{entry.place} ({fields}; {plain(entry.why, _REASON_LIMIT)})"


def _record_words(record: Record) -> str:
    if isinstance(record, ConformanceRecord):
        what = f"{record.runtime} {record.operator} {record.opset} {record.dtype} {record.feature}"
        said = f"{record.verdict}. {record.diagnosis or record.reason}"
    elif isinstance(record, GateRecord):
        what, said = f"{record.gate}, {place(record)}", record.reason
    else:
        what, said = where_in_words(record, CommonFactors()), reason_of(record)
    return f"{what}: {plain(said, _REASON_LIMIT)}"
