"""`--expect FILE`: its effect on the exit code and its messages on stderr, the same for every command."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sdpa_onnx.cli.error_boundary import DISAGREES, OK, print_message

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import Record
    from sdpa_onnx.workflows.expected.known_findings import KnownFindings, SortedFindings

__all__ = ["conclude", "exit_code", "print_known_findings", "read_known_findings"]


def read_known_findings(path: Path | None) -> "KnownFindings | None":
    """Read the file. Call this before the work starts, so that a mistake in it is reported at once.

    Raises:
        PlanError: If the file is invalid.
    """
    if path is None:
        return None
    from sdpa_onnx.workflows.expected.known_findings import read_expected

    return read_expected(path)


def exit_code(records: "Sequence[Record]", found: "SortedFindings | None") -> int:
    """Return DISAGREES for a new finding or, without a file, for any record that disagrees or failed."""
    from sdpa_onnx.core.records.records import Outcome

    if found is not None:
        return DISAGREES if found.new else OK
    bad = (record.outcome is Outcome.DISAGREES or record.outcome.is_failure for record in records)
    return DISAGREES if any(bad) else OK


def conclude(records: "Sequence[Record]", expected: "KnownFindings | None") -> int:
    """Print how the records differ from the known findings, and return the exit code."""
    found = expected.sort(records) if expected is not None else None
    if found is not None:
        print_known_findings(found)
    return exit_code(records, found)


def print_known_findings(found: "SortedFindings", *, with_summary: bool = True) -> None:
    """Print on stderr the new findings and the outdated entries of the file.

    Args:
        with_summary: False if the report already has the summary.
    """
    from sdpa_onnx.report.run.known_findings import known_details, new_lines
    from sdpa_onnx.report.text.known_summary import known_summary

    for line in [*([known_summary(found)] if with_summary else []), *new_lines(found), *known_details(found)]:
        print_message(line)
