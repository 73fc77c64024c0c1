"""How much two processes of one model differ on this class of machine: kept in the user's cache folder.

Reads and writes the figure; `bench --calibrate` measures it.
"""

import os
import tempfile
from pathlib import Path

import msgspec

from sdpa_onnx.core.paired import Calibration
from sdpa_onnx.errors import FolderError
from sdpa_onnx.graph.whole_file import write_whole
from sdpa_onnx.measure.environment import environment

__all__ = ["calibration_file", "load_calibration", "machine_class", "store_calibration"]


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    between_sd: float
    degrees: float


def machine_class() -> str:
    """Processor and number of cores that this process may use, e.g. "AMD EPYC 7763, 2 cores"."""
    facts = environment()
    return f"{facts['cpu']}, {facts['cores_usable']} cores"


def calibration_file() -> Path:
    """Where calibrations are kept, by class of machine."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is to be ignored. Source: XDG Base Directory Specification.
    folder = Path(base) if Path(base).is_absolute() else _home() / ".cache"
    return folder / "sdpa_onnx" / "calibration.json"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user of a container who is in no list
        return Path(tempfile.gettempdir())


def load_calibration() -> Calibration:
    """The figure for this class of machine, or the usual one where none is kept."""
    machine = machine_class()
    found = _read(calibration_file()).get(machine)
    if found is None or not (0 < found.between_sd < 1 and found.degrees > 0):
        return Calibration()
    return Calibration(between_sd=found.between_sd, degrees=found.degrees, machine=machine)


def store_calibration(calibration: Calibration) -> Path:
    """Keep a figure for its class of machine; what is kept of other classes stays.

    Returns:
        The file.

    Raises:
        FolderError: If it cannot be written.
    """
    path = calibration_file()
    kept = _read(path)
    kept[calibration.machine] = _Stored(between_sd=calibration.between_sd, degrees=calibration.degrees)
    data = msgspec.json.format(msgspec.json.encode(kept, order="sorted"), indent=2) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise FolderError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path


def _read(path: Path) -> dict[str, _Stored]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Stored])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
