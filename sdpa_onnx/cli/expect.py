"""`--expect FILE`: what it makes of the exit code, and what is told of it on stderr. One way for every command."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sdpa_onnx.cli.error_boundary import DISAGREES, OK, tell

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import Record
    from sdpa_onnx.workflows.expected.known_findings import KnownFindings, SortedFindings

__all__ = ["conclude", "exit_code", "keep_known", "kept_known", "read_known", "tell_known"]

# In a run folder: TOML, JSON.
_KEPT = ("expected.toml", "expected.json")


def read_known(path: Path | None) -> "KnownFindings | None":
    """Read the file before any work is done, so that a mistake in it is told at once.

    Raises:
        PlanError: If it is wrong.
    """
    if path is None:
        return None
    from sdpa_onnx.workflows.expected.known_findings import read_expected

    return read_expected(path)


def keep_known(path: Path, folder: Path) -> None:
    """Put a copy of the file into a run folder: what is rendered there must be told by the folder alone.

    Raises:
        FolderError: If it cannot be written.
    """
    from sdpa_onnx.sweep.store import replace_file

    for name in _KEPT:
        (folder / name).unlink(missing_ok=True)
    replace_file(folder / _KEPT[path.suffix == ".json"], path.read_bytes())


def kept_known(folder: Path) -> "KnownFindings | None":
    """The known findings that a run was made with, if any.

    Raises:
        PlanError: If somebody has spoilt the file.
    """
    return next((read_known(folder / name) for name in _KEPT if (folder / name).exists()), None)


def exit_code(records: "Sequence[Record]", found: "SortedFindings | None") -> int:
    """DISAGREES for a new finding; without a file, for any record that disagrees or failed."""
    from sdpa_onnx.core.records.records import Outcome

    if found is not None:
        return DISAGREES if found.new else OK
    bad = (record.outcome is Outcome.DISAGREES or record.outcome.is_failure for record in records)
    return DISAGREES if any(bad) else OK


def conclude(records: "Sequence[Record]", expected: "KnownFindings | None") -> int:
    """The exit code of a command, once it has told how its records stand beside the known findings."""
    found = expected.sort(records) if expected is not None else None
    if found is not None:
        tell_known(found)
    return exit_code(records, found)


def tell_known(found: "SortedFindings", *, with_summary: bool = True) -> None:
    """Tell on stderr what is new and what of the file is out of date.

    Args:
        with_summary: False where the report has said it already.
    """
    from sdpa_onnx.report.run.known_findings import known_details, new_lines
    from sdpa_onnx.report.text.known_summary import known_summary

    for line in [*([known_summary(found)] if with_summary else []), *new_lines(found), *known_details(found)]:
        tell(line)
