"""Tell other timings on this machine that one is going on, and hear of theirs: two at once spoil each other.

One file a process in a shared temporary folder, locked while the timing lasts; a file that nobody holds is left over
from a process that was killed. Where the folder cannot be used, nothing is announced and nothing fails.
"""

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["TimingNotice", "announced", "notice_folder"]

_FOLDER = "sdpa_onnx-timings"
_SUFFIX = ".lock"
# Everybody may add a file, and only its owner may take it away.
_SHARED = 0o1777
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# Far above the list of every process that could overlap one timing.
_READ_BYTES = 1 << 16


def notice_folder() -> Path:
    """Where timings announce themselves."""
    return Path(tempfile.gettempdir()) / _FOLDER


@dataclass(slots=True)
class TimingNotice:
    """Our announcement, and whom we met.

    Args:
        folder: The shared folder.
        handle: Our open and locked file, or None where there is none.
        name: Its name.
    """

    folder: Path
    handle: int | None = None
    name: str = ""
    _met: dict[int, None] = field(default_factory=dict, init=False)

    def others(self) -> tuple[int, ...]:
        """Processes whose timing has overlapped ours so far."""
        if self.handle is None:
            return ()
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
                process = _process_of(path)
                if path.name != self.name and process not in (-1, os.getpid()) and self._is_held(path):
                    self._met[process] = None
        self._met |= dict.fromkeys(self._told())
        return tuple(sorted(self._met))

    def warnings(self) -> tuple[str, ...]:
        """One sentence for all of them; none if there are none."""
        others = self.others()
        if not others:
            return ()
        who = f"process {others[0]}" if len(others) == 1 else f"{len(others)} processes"
        return (f"Another timing of sdpa_onnx ({who}) ran at the same time.",)

    def _is_held(self, path: Path) -> bool:
        """Whether its process lives; then it is notified of us, otherwise its file is deleted."""
        try:
            handle = os.open(path, os.O_RDONLY | _OPEN)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell(path)
            return True
        except OSError:
            return False
        else:
            with contextlib.suppress(OSError):  # another user's
                path.unlink()
            return False
        finally:
            os.close(handle)

    def _told(self) -> list[int]:
        """Processes that wrote themselves into our file, since they may have ended before we looked."""
        with contextlib.suppress(OSError):
            text = os.pread(self.handle or 0, _READ_BYTES, 0).decode("ascii", "replace")
            return [int(word) for word in text.split() if word.isdecimal()]
        return []


def _tell(path: Path) -> None:
    with contextlib.suppress(OSError):  # another user's
        handle = os.open(path, os.O_RDWR | os.O_APPEND | _OPEN)
        try:
            mine = f"{os.getpid()}\n".encode()
            if mine not in os.pread(handle, _READ_BYTES, 0):
                os.write(handle, mine)
        finally:
            os.close(handle)


@contextlib.contextmanager
def announced(folder: Path | None = None) -> Iterator[TimingNotice]:
    """Announce a timing for as long as a with block lasts.

    Args:
        folder: The shared folder; None = `notice_folder()`.
    """
    notice = TimingNotice(folder=folder or notice_folder())
    with contextlib.suppress(OSError):
        _take(notice)
    notice.others()
    try:
        yield notice
    finally:
        if notice.handle is not None:
            with contextlib.suppress(OSError):
                (notice.folder / notice.name).unlink()
            os.close(notice.handle)


def _take(notice: TimingNotice) -> None:
    """Make our file; it gets its name when it is locked, so that nobody takes it for left over."""
    with contextlib.suppress(FileExistsError):
        notice.folder.mkdir()
        notice.folder.chmod(_SHARED)
    name = f"{os.getuid()}-{os.getpid()}-{secrets.token_hex(4)}"
    draft = notice.folder / f"{name}.draft"
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(notice.folder / f"{name}{_SUFFIX}")
    except OSError:
        os.close(handle)
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    notice.handle, notice.name = handle, f"{name}{_SUFFIX}"


def _process_of(path: Path) -> int:
    """Whose file it is, -1 if no timing's."""
    parts = path.stem.split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else -1
