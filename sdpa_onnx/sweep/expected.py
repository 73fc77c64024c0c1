"""The list of known findings that a run folder holds, because a report is rendered from the folder alone."""

from pathlib import Path

from sdpa_onnx.sweep.store import replace_file
from sdpa_onnx.workflows.expected.known_findings import KnownFindings, read_expected

__all__ = ["store_known_findings", "stored_known_findings"]

# Names of the copy in a run folder: TOML, JSON.
_STORED_NAMES = ("expected.toml", "expected.json")


def store_known_findings(path: Path, folder: Path) -> None:
    """Copy the file into a run folder.

    Raises:
        FolderError: If the copy cannot be written.
    """
    for name in _STORED_NAMES:
        (folder / name).unlink(missing_ok=True)
    replace_file(folder / _STORED_NAMES[path.suffix == ".json"], path.read_bytes())


def stored_known_findings(folder: Path) -> KnownFindings | None:
    """Return the known findings that a run was made with, if any.

    Raises:
        PlanError: If the stored file is invalid.
    """
    return next((read_expected(folder / name) for name in _STORED_NAMES if (folder / name).exists()), None)
