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

    from sdpa_onnx.report.conformance_run import ConformanceRun
    from sdpa_onnx.workflows.conformance.feature import Feature
    from sdpa_onnx.workflows.expected import Sorted

__all__ = ["print_json", "show_conformance", "show_features", "show_records", "show_report"]

_FEATURE_WORDS = ("slug", "group", "operator", "title", "source")


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


def show_report(
    records: Sequence[Record], header: RunHeader, summary: Path, *, as_json: bool, known: "Sorted | None" = None
) -> None:
    """Print a whole run, and where its report is."""
    with _while_read():
        if as_json:
            print_json(records)
            return
        from sdpa_onnx.report.terminal import print_report

        print_report(records, header, _console(), known=known)
        print(f"\nReport: {summary}")


def show_conformance(run: "ConformanceRun", *, as_json: bool) -> None:
    """Print the rows of `conformance` for a program or a person."""
    with _while_read():
        if as_json:
            print_json(run.records)
            return
        from sdpa_onnx.report.conformance_terminal import print_conformance

        print_conformance(run, _console())


def show_features(features: "Sequence[Feature]", *, as_json: bool) -> None:
    """List what `conformance` can ask."""
    plain = [{name: str(getattr(one, name)) for name in _FEATURE_WORDS} for one in features]
    with _while_read():
        stream = results()
        if as_json and stream is not None:
            stream.write(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n")
        elif not as_json:
            width = max(len(one["slug"]) for one in plain)
            for one in plain:
                print(f"{one['slug']:{width}}  {one['operator']}: {one['title']}")


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
