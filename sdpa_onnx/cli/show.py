"""Print records on stdout, as JSON or as the tables of the report. A closed pipe (`| head`) is no error."""

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from sdpa_onnx.cli.detail import Detail, requested_detail
from sdpa_onnx.cli.error_boundary import drop_results, flush_results, results
from sdpa_onnx.core.records.records import Record, RuntimeRecord
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.text.escape_control import escape_control

if TYPE_CHECKING:
    from rich.console import Console

    from sdpa_onnx.core.compare.history import History
    from sdpa_onnx.core.records.records import TimingRecord
    from sdpa_onnx.report.compare.gate_report import GateReport
    from sdpa_onnx.report.conformance.run import ConformanceRun
    from sdpa_onnx.report.text.result_text import ResultText
    from sdpa_onnx.workflows.bench.bench_files import BenchResult
    from sdpa_onnx.workflows.conformance.feature import Feature
    from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = [
    "print_json",
    "print_plain",
    "show_bench",
    "show_conformance",
    "show_features",
    "show_gates",
    "show_history",
    "show_records",
    "show_report",
    "show_result",
]

_FEATURE_FIELDS = ("slug", "group", "operator", "title", "source")


def show_records(records: Sequence[Record], *, as_json: bool) -> None:
    """Print records, as JSON or as tables."""
    with _ignore_closed_pipe():
        if as_json:
            print_json(records)
        elif records and isinstance(records[0], RuntimeRecord):
            from sdpa_onnx.report.text.layout import paragraph

            width = shutil.get_terminal_size().columns
            for record in records:
                for line in paragraph(_runtime_line(record), width, hanging="  "):
                    _print_text(line)
        else:
            from sdpa_onnx.report.run.terminal import print_tables

            print_tables(records, _console())


def show_result(result: "ResultText") -> None:
    """Print the result of a command: the verdict, unless --quiet the details, with --verbose the tables."""
    from sdpa_onnx.report.text.print_lines import print_lines
    from sdpa_onnx.report.text.result_text import result_lines

    detail = requested_detail()
    with _ignore_closed_pipe():
        console = _console()
        print_lines(
            result_lines(
                result,
                console.width,
                with_details=detail is not Detail.QUIET,
                with_tables=detail is Detail.VERBOSE,
            ),
            console,
        )


def show_report(
    records: Sequence[Record], header: RunHeader, summary: Path, *, as_json: bool, known: "SortedFindings | None" = None
) -> None:
    """Print the first screen of a run and the path of its report."""
    with _ignore_closed_pipe():
        if as_json:
            print_json(records)
            return
        if _is_quiet():
            from sdpa_onnx.report.run.findings import first_findings

            _print_text(first_findings(records, header, known=known)[0])
            return
        from sdpa_onnx.report.run.terminal import print_report

        folder = str(summary.parent)
        print_report(records, header, _console(), report=str(summary), folder=folder, known=known)


def show_history(history: "History", page: Path, *, as_json: bool) -> None:
    """Print the history of a folder of runs and the path of its report."""
    with _ignore_closed_pipe():
        if as_json:
            from sdpa_onnx.report.compare.history import history_data

            _print(msgspec.json.encode(history_data(history)))
            return
        from sdpa_onnx.report.compare.history_text import history_sentences, history_tables

        if _is_quiet():
            _print_text(history_sentences(history)[0])
            return
        from sdpa_onnx.report.run.terminal import print_findings_and_tables

        print_findings_and_tables(history_sentences(history), history_tables(history), _console())
        _print_text(f"\nReport: {page}")


def show_bench(
    results: "Sequence[BenchResult]",
    refused: "Sequence[TimingRecord]",
    records: Sequence[Record],
    *,
    as_json: bool,
    against: str = "",
) -> None:
    """Print the comparisons of `bench`, as JSON or as tables."""
    with _ignore_closed_pipe():
        if as_json:
            print_json(records)
            return
        from sdpa_onnx.report.text.print_lines import print_lines
        from sdpa_onnx.report.timing.bench_table import BENCH_WIDTH, bench_lines, bench_verdict

        console = _console()
        width = console.width if console.is_terminal else BENCH_WIDTH
        layout = bench_verdict if _is_quiet() else bench_lines
        print_lines(layout(results, refused, width=width, against=against), console)


def show_conformance(run: "ConformanceRun", *, as_json: bool) -> None:
    """Print the rows of `conformance`, as JSON or as a table."""
    with _ignore_closed_pipe():
        if as_json:
            print_json(run.records)
            return
        from sdpa_onnx.report.conformance.terminal import conformance_lines, short_lines, verdict_lines
        from sdpa_onnx.report.text.print_lines import print_lines

        console = _console()
        layout = {Detail.QUIET: verdict_lines, Detail.NORMAL: short_lines, Detail.VERBOSE: conformance_lines}
        print_lines(layout[requested_detail()](run, console.width), console)


def show_gates(report: "GateReport", *, as_json: bool) -> None:
    """Print the rows of `compare`, as JSON or as a report."""
    with _ignore_closed_pipe():
        if as_json:
            print_json(report.rows)
            return
        if _is_quiet():
            from sdpa_onnx.report.compare.gate_report import summary

            _print_text(summary(report))
            return
        from sdpa_onnx.report.compare.terminal import print_gates

        print_gates(report, _console())


def show_features(features: "Sequence[Feature]", *, as_json: bool) -> None:
    """List the features that `conformance` can test."""
    plain = [{name: str(getattr(one, name)) for name in _FEATURE_FIELDS} for one in features]
    with _ignore_closed_pipe():
        if as_json:
            _print(msgspec.json.encode(plain))
        else:
            width = max(len(one["slug"]) for one in plain)
            for one in plain:
                print(f"{one['slug']:{width}}  {one['operator']}: {one['title']}")


def print_plain(lines: Iterable[str]) -> None:
    """Print lines, not laid out."""
    with _ignore_closed_pipe():
        for line in lines:
            _print_text(line)


def _print_text(text: str) -> None:
    """Print text without what controls a terminal; `print_lines` does the same."""
    print(escape_control(text))


def print_json(records: Sequence[Record]) -> None:
    """Print records as a JSON array."""
    with _ignore_closed_pipe():
        _print(msgspec.json.encode(list(records), order="sorted"))


def _print(data: bytes) -> None:
    stream = results()
    if stream is not None:
        text = msgspec.json.format(data, indent=2).decode()
        stream.write(f"{text if _can_encode(stream, text) else json.dumps(json.loads(text), indent=2)}\n")


def _can_encode(stream: TextIO, text: str) -> bool:
    """Whether the stream's encoding has every character. The stream's own escape sequences are not valid JSON."""
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def _ignore_closed_pipe() -> Iterator[None]:
    """Stop printing when the reader closes the pipe; the exit code of the command does not change."""
    try:
        yield
        flush_results()
    except BrokenPipeError:
        drop_results()


def _is_quiet() -> bool:
    return requested_detail() is Detail.QUIET


def _console() -> "Console":
    """Return a console that raises BrokenPipeError; rich's own exits with 1, which is our code for a disagreement."""
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
