"""Records on stdout: as JSON, or as the report's own tables."""

import sys
from collections.abc import Sequence

import msgspec

from sdpa_onnx.core.records import Record, RuntimeRecord

__all__ = ["print_json", "show_records"]


def show_records(records: Sequence[Record], *, as_json: bool) -> None:
    """Print records for a program (`--json`) or a person."""
    if as_json:
        print_json(records)
        return
    from rich.console import Console

    from sdpa_onnx.report.terminal import print_tables

    if records and isinstance(records[0], RuntimeRecord):
        for record in records:
            print(_runtime_line(record))
        return
    print_tables(records, Console())


def print_json(records: Sequence[Record]) -> None:
    """A JSON array of records."""
    data = msgspec.json.format(msgspec.json.encode(list(records), order="sorted"), indent=2)
    sys.stdout.write(data.decode() + "\n")
    sys.stdout.flush()


def _runtime_line(record: Record) -> str:
    assert isinstance(record, RuntimeRecord)  # noqa: S101 - narrows the type only
    use = "" if record.measures_time else "  (agreement only)"
    what = record.version or f"not available: {record.reason}"
    return f"{record.runtime:16}{what}{use}"
