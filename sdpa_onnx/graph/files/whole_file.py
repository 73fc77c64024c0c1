"""Write a file atomically, and only over a regular file; knows nothing of its content."""

import errno
import os
import tempfile
from pathlib import Path

from sdpa_onnx.errors import FolderError, SdpaOnnxError

__all__ = ["FULL_DISK_HINT", "check_target", "open_files_hint", "target_file", "write_whole"]

FULL_DISK_HINT = "Free some space and repeat the command; `run` continues with --resume."

# Not the name of the target, which may be too long to add anything.
_PREFIX = ".sdpa-onnx-"


def open_files_hint(error: Exception) -> str | None:
    """What to do about an error that says that too many files are open; None for any other."""
    is_limit = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    return "Allow more open files: ulimit -n 4096." if is_limit else None


def check_target(path: Path, *, failure: type[SdpaOnnxError] = FolderError) -> Path:
    """The same as `target_file`, before the work starts: a file is also made in the folder and removed.

    Raises:
        failure: As `target_file`, or if no file can be made there, for example in /proc.
    """
    target = target_file(path, failure=failure)
    if target.parent.is_dir():
        try:  # permissions do not say whether a file can be made
            tempfile.TemporaryFile(dir=target.parent, prefix=_PREFIX).close()
        except OSError as error:
            if error.errno != errno.ENOSPC:  # writing says what to do about that
                raise failure(f"Cannot write {path}: {_reason(error)}.") from error
    return target


def target_file(path: Path, *, failure: type[SdpaOnnxError] = FolderError) -> Path:
    """The file of a path after following links, so that a link stays a link.

    Args:
        path: Where to write.
        failure: What to raise.

    Raises:
        failure: If it is a folder, a device or a pipe, its folder is not writable, or it is "-", which elsewhere means
            stdout.
    """
    if str(path) == "-":
        raise failure("'-' is not the name of a file.", hint="Give the name of a file.")
    try:
        target = path.resolve()
        if target.is_dir():
            raise failure(f"{path} is a directory.", hint="Give the name of a file.")
        if target.exists() and not target.is_file():
            raise failure(f"{path} is not a regular file.", hint="Give the name of a file.")
    except (OSError, RuntimeError) as error:  # RuntimeError: circular links, before Python 3.13
        raise failure(f"Cannot write {path}: {_reason(error)}.") from error
    above = next((folder for folder in target.parents if folder.exists()), target.parent)
    if above.is_dir() and not os.access(above, os.W_OK | os.X_OK):
        raise failure(f"Cannot write {path}: {above} is not writable.")
    return target


def write_whole(
    path: Path, data: bytes, *, failure: type[SdpaOnnxError] = FolderError, hint: str | None = None
) -> Path:
    """Write a file in one step: readers see the old one or the new one, also after a power cut.

    Args:
        path: Where; a link is followed. Its folder must exist.
        data: Its content.
        failure: What to raise.
        hint: Advice if the disk is full.

    Returns:
        The file, links followed.

    Raises:
        failure: If it cannot be written; the old file is unchanged.
    """
    target = target_file(path, failure=failure)
    temporary: str | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=_PREFIX, delete=False) as file:
            temporary = file.name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else a power cut can leave the new name without its content
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            full = hint if error.errno == errno.ENOSPC else None
            raise failure(f"Cannot write {path}: {_reason(error)}.", hint=full) from error
        raise
    return target


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
