"""Compare what is stored: two run folders, or two files of pytest-benchmark. Runs nothing and prints nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path

from sdpa_onnx.core.compare.gate_effects import PINNED, Machine
from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gates import RunSide, compare_stored
from sdpa_onnx.core.records.gate_records import GateRecord, GateVerdict
from sdpa_onnx.errors import PlanError
from sdpa_onnx.sweep.comparison_kind import ComparisonKind
from sdpa_onnx.sweep.store import read_run
from sdpa_onnx.workflows.compare.benchmarks import compare_benchmarks

__all__ = ["compare_stored_files", "require_common"]


def compare_stored_files(
    kind: ComparisonKind,
    base: Path,
    head: Path,
    limits: GateLimits,
    pinned: str | None,
    *,
    on_note: Callable[[str], None] = lambda _: None,
) -> list[GateRecord]:
    """Compare stored results.

    Args:
        kind: Run folders or benchmark files.
        base, head: Before and after.
        limits: Limits of the gates.
        pinned: The arm that did not change, by which times are compared; None = torch.
        on_note: Called with a sentence for each run that is unfinished.

    Raises:
        PlanError: If a folder contains no run.
        RecordFormatError: If a file in it cannot be read.
    """
    if kind is ComparisonKind.BENCHMARKS:
        return compare_benchmarks(base, head, limits, pinned=pinned or PINNED)
    return compare_stored(_side(base, on_note), _side(head, on_note), limits, pinned=pinned or PINNED)


def require_common(base: object, head: object, rows: Sequence[GateRecord]) -> None:
    """Reject a comparison in which nothing was compared, because it is no pass.

    Raises:
        PlanError: If BASE and HEAD have nothing in common.
    """
    if all(row.word in (GateVerdict.APPEARED, GateVerdict.DISAPPEARED) for row in rows):
        raise PlanError(f"{base} and {head} have nothing in common to compare.", hint="Check both paths.")


def _side(folder: Path, on_note: Callable[[str], None]) -> RunSide:
    header, records = read_run(folder)
    if not header.is_finished:
        on_note(f"{folder} is unfinished: {header.done_cells} of {header.planned_cells} cells are done.")
    return RunSide(records=records, machine=Machine(environment=header.environment, versions=header.versions))
