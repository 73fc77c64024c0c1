"""How much two processes of one model differ on this class of machine: kept in the user's cache folder.

Reads and writes the figure; `bench --calibrate` measures it.
"""

import os
import tempfile
from pathlib import Path

import msgspec

from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.errors import FolderError
from sdpa_onnx.graph.files.whole_file import write_whole
from sdpa_onnx.measure.environment import environment

__all__ = [
    "cache_folder",
    "calibration_file",
    "is_believable",
    "load_calibration",
    "machine_class",
    "store_calibration",
]

# What two processes of one model may differ by, as a share: less is below what any machine was seen to do, more is no
# machine to time on. Source: docs/decisions/0006-timing.md (0.57 % where it was measured).
_LEAST_BETWEEN_SD, _MOST_BETWEEN_SD = 0.0005, 0.2
# What the figure may be worth: a calibration of some minutes gives tens of pairs of processes, never thousands.
_LEAST_DEGREES, _MOST_DEGREES = 1.0, 1000.0


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    between_sd: float
    degrees: float


def machine_class() -> str:
    """Processor and number of cores that this process may use, e.g. "AMD EPYC 7763, 2 cores"."""
    facts = environment()
    return f"{facts['cpu']}, {facts['cores_usable']} cores"


def calibration_file() -> Path:
    """Where calibrations are kept, by class of machine."""
    return cache_folder() / "calibration.json"


def cache_folder() -> Path:
    """Our folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is to be ignored. Source: XDG Base Directory Specification.
    folder = Path(base) if Path(base).is_absolute() else _home() / ".cache"
    return folder / "sdpa_onnx"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user of a container who is in no list
        return Path(tempfile.gettempdir())


def load_calibration() -> Calibration:
    """The figure for this class of machine, or the usual one where none is kept."""
    machine = machine_class()
    found = _read(calibration_file()).get(machine)
    if found is None or not is_believable(found.between_sd, found.degrees):
        return Calibration()
    return Calibration(between_sd=found.between_sd, degrees=found.degrees, machine=machine)


def is_believable(between_sd: float, degrees: float) -> bool:
    """Whether a figure can have been measured; what cannot is as good as none."""
    return _LEAST_BETWEEN_SD <= between_sd <= _MOST_BETWEEN_SD and _LEAST_DEGREES <= degrees <= _MOST_DEGREES


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
