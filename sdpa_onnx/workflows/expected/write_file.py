"""Format the findings of a run as a file of known findings, to create or update it.

Returns text and writes no file. Twin: known_findings.py, which reads it.
"""

import json
from collections.abc import Sequence

from sdpa_onnx.core.records.records import ConformanceRecord, GateRecord, Record
from sdpa_onnx.core.records.subject import Subject
from sdpa_onnx.workflows.expected.amount import allowance
from sdpa_onnx.workflows.expected.known_findings import KnownFindings, is_bad

__all__ = ["write_known"]

_HEAD = """\
# Known findings: a finding listed here does not fail `--expect`, any other does, and vanished ones are reported.
# Every field but `why` must be equal; `*` in a text matches any text. A finding above `at_most` is new.
"""
# Fields that identify a row, in the order of the file, and fields of the result.
_FIELDS: dict[type[Record], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ConformanceRecord: (("runtime", "operator", "feature", "opset", "dtype"), ("verdict", "observed")),
    GateRecord: (("gate", "runtime", "target", "case", "form", "arm", "subject", "site", "inputs"), ("word",)),
}


def write_known(records: Sequence[Record], *, known: KnownFindings) -> str:
    """Write an entry for each bad row, sorted by the fields that identify it.

    Args:
        records: Records of `conformance` or `compare`; other kinds are omitted.
        known: Existing entries; a row that one of them matches keeps its `why`.
    """
    bad = [record for record in records if type(record) in _FIELDS and is_bad(record)]
    ordered = sorted(bad, key=lambda row: [_sortable(getattr(row, name)) for name in _FIELDS[type(row)][0]])
    return "\n".join([_HEAD, *(_entry(record, known) for record in ordered)])


def _sortable(value: str | int | None) -> tuple[bool, str | int]:
    """A key that sorts a field by its value, an unknown one first."""
    return (False, 0) if value is None else (True, value)


def _entry(record: Record, known: KnownFindings) -> str:
    entry = known.find(record)
    why = entry.why if entry else getattr(record, "diagnosis", "") or record.reason or "No reason was recorded."
    kind = str(record.__struct_config__.tag)
    row_fields, result_fields = _FIELDS[type(record)]
    values = {"kind": kind} | {
        name: value for name in (*row_fields, *result_fields) if (value := getattr(record, name))
    }
    if values.get("subject") is Subject.ATTENTION:
        del values["subject"]  # an entry without a subject is of an attention
    at_most = allowance(record)
    values |= {} if at_most is None else {"at_most": at_most}
    values["why"] = " ".join(why.split())
    lines = [f"{name} = {_toml(value)}" for name, value in values.items()]
    return "\n".join(["[[known]]", *lines, ""])


def _toml(value: object) -> str:
    """A number, or a basic string; JSON's escapes are TOML's, except DEL and what UTF-8 cannot encode."""
    if isinstance(value, int | float):
        return repr(value)
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
