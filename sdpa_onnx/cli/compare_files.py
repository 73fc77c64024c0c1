"""The files of `compare`: check them before the work starts, and write the comparison."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sdpa_onnx.cli.error_boundary import print_message, results
from sdpa_onnx.errors import PlanError
from sdpa_onnx.sweep.comparison_kind import ComparisonKind

if TYPE_CHECKING:
    from sdpa_onnx.core.records.gate_records import Gate, GateRecord
    from sdpa_onnx.report.compare.gate_report import GateReport
    from sdpa_onnx.workflows.expected.known_findings import KnownFindings

__all__ = [
    "STDOUT",
    "check_outputs",
    "method_sentence",
    "write_known_file",
    "write_results",
]

# File name that means stdout.
STDOUT = Path("-")


# (whether the numbers were judged, whether the models ran for time, or only for memory) -> sentence.
_MODELS_SENTENCES = {
    (True, True, True): "Both were judged, and timed interleaved on one machine.",
    (True, False, True): "Both were judged, and their memory was measured; times were not compared.",
    (True, False, False): "Both were judged; they were not timed.",
    (False, True, True): "Both were timed interleaved on one machine; their numbers were not judged.",
    (False, False, True): "Their memory was measured; nothing was judged, and times were not compared.",
    (False, False, False): "Only their graphs were compared; nothing was judged or timed.",
}


def method_sentence(kind: ComparisonKind, skipped: "frozenset[Gate]") -> str:
    """Describe the comparison in one sentence.

    Args:
        kind: What is compared.
        skipped: Gates that are not compared.
    """
    from sdpa_onnx.core.records.gate_records import Gate

    if kind is ComparisonKind.MODELS:
        is_timed = Gate.TIME not in skipped
        return _MODELS_SENTENCES[Gate.AGREEMENT not in skipped, is_timed, is_timed or Gate.MEMORY not in skipped]
    if Gate.TIME in skipped:
        return "Stored results."
    return "Stored results; times are compared by their ratios to the common pinned baseline."


def check_outputs(
    markdown: Path | None, others: Sequence[Path | None], write_expected: Path | None, *, as_json: bool
) -> None:
    """Check before the work starts that every output can be written.

    Raises:
        PlanError: If a file cannot be written, if the file of known findings already exists, or if two outputs go to
            stdout.
        ModuleNotFoundError: If a package is missing.
    """
    from sdpa_onnx.graph.files.whole_file import check_target

    if markdown == STDOUT and as_json:
        raise PlanError("--markdown - and --json both write to stdout.", hint="Give --markdown a file.")
    for path in (markdown, *others, write_expected):
        if path is None or (path is markdown and path == STDOUT):
            continue
        if path.is_dir():
            raise PlanError(f"{path} is a folder.", hint="Give the name of a file.")
        check_target(path, failure=PlanError)
    if write_expected is not None and write_expected.exists():
        raise PlanError(
            f"{write_expected} already exists and is not overwritten.",
            hint=f"Choose another name; --expect {write_expected} copies its reasons into the new file.",
        )
    if not as_json:
        importlib.import_module("rich")


def write_results(report: "GateReport", markdown: Path | None, html: Path | None, junit: Path | None) -> None:
    """Write the requested files.

    Raises:
        FolderError: If a file cannot be written.
    """
    from sdpa_onnx.report.compare.junit import render_junit
    from sdpa_onnx.report.compare.markdown import render_gates
    from sdpa_onnx.sweep.store import replace_file

    stream = results()
    if markdown == STDOUT and stream is not None:
        stream.write(render_gates(report))
    elif markdown is not None and markdown != STDOUT:
        replace_file(markdown, render_gates(report).encode())
        print_message(f"wrote {markdown}")
    if html is not None:
        from sdpa_onnx.report.page.compare_page import render_page

        replace_file(html, render_page(report).encode())
        print_message(f"wrote {html}")
    if junit is not None:
        replace_file(junit, render_junit(report))
        print_message(f"wrote {junit}")


def write_known_file(path: Path, rows: "Sequence[GateRecord]", expected: "KnownFindings | None") -> None:
    """Write the current findings as known ones. `check_outputs` has checked that the file does not exist.

    Raises:
        FolderError: If the file cannot be written.
    """
    from sdpa_onnx.sweep.store import replace_file
    from sdpa_onnx.workflows.expected.known_findings import KnownFindings, is_bad
    from sdpa_onnx.workflows.expected.write_file import write_known

    replace_file(path, write_known(rows, known=expected or KnownFindings()).encode())
    print_message(f"wrote {path}: {sum(map(is_bad, rows))} known findings")
