"""Read a folder of runs; unreadable runs are skipped and reported. Compares nothing."""

from dataclasses import dataclass
from pathlib import Path

from sdpa_onnx.core.compare.history import StoredRun
from sdpa_onnx.errors import PlanError, SdpaOnnxError
from sdpa_onnx.sweep.store import is_run, read_run

__all__ = ["StoredRuns", "is_history", "read_runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRuns:
    """Readable runs, and the reason for each skipped run, by name."""

    runs: tuple[StoredRun, ...]
    skipped: dict[str, str]


def is_history(folder: Path) -> bool:
    """Whether a folder is not a run itself and contains at least one."""
    return not is_run(folder) and folder.is_dir() and any(is_run(inside) for inside in folder.iterdir())


def read_runs(folder: Path) -> StoredRuns:
    """Read every run directly inside a folder, finished or not.

    Raises:
        PlanError: If none of them can be read.
    """
    runs: list[StoredRun] = []
    skipped: dict[str, str] = {}
    for inside in sorted(path for path in folder.iterdir() if is_run(path)):
        try:
            header, records = read_run(inside)
        except (SdpaOnnxError, OSError) as error:
            skipped[inside.name] = " ".join(str(error).split())
        else:
            runs.append(StoredRun(name=inside.name, header=header, records=records))
    if not runs:
        raise PlanError(f"No run in {folder} can be read.", hint="; ".join(skipped.values()))
    return StoredRuns(runs=tuple(runs), skipped=skipped)
