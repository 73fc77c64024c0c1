"""Records on stdout: as JSON, or as the report's own tables. A reader that goes away (`| head`) is no error."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sdpa_onnx.cli.guard import drop_results, flush_results, results
from sdpa_onnx.core.header import RunHeader
from sdpa_onnx.core.records import Record, RuntimeRecord

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_json", "show_records", "show_report"]


def show_records(records: Sequence[Record], *, as_json: bool) -> None:
    """Print records for a program (`--json`) or a person."""
    with _while_read():
        if as_json:
            print_json(records)
        elif records and isinstance(records[0], RuntimeRecord):
            for record in records:
                print(_runtime_line(record))
        else:
            from sdpa_onnx.report.terminal import print_tables

            print_tables(records, _console())


def show_report(records: Sequence[Record], header: RunHeader, summary: Path, *, as_json: bool) -> None:
    """Print a whole run, and where its report is."""
    with _while_read():
        if as_json:
            print_json(records)
            return
        from sdpa_onnx.report.terminal import print_report

        print_report(records, header, _console())
        print(f"\nReport: {summary}")


def print_json(records: Sequence[Record]) -> None:
    """A JSON array of records."""
    data = msgspec.json.format(msgspec.json.encode(list(records), order="sorted"), indent=2)
    stream = results()
    if stream is not None:
        stream.write(data.decode() + "\n")


@contextlib.contextmanager
def _while_read() -> Iterator[None]:
    """Print until the reader leaves; the exit code is the command's either way."""
    try:
        yield
        flush_results()
    except BrokenPipeError:
        drop_results()


def _console() -> "Console":
    """A console that lets a broken pipe through; rich's own would exit with 1, our word for a disagreement."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipeConsole()


def _runtime_line(record: Record) -> str:
    assert isinstance(record, RuntimeRecord)  # noqa: S101 - narrows the type only
    use = "" if record.measures_time else "  (agreement only)"
    what = record.version or f"not available: {record.reason}"
    return f"{record.runtime:16}{what}{use}"
