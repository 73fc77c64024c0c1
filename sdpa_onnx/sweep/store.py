"""The only reader and writer of run folders.

records.jsonl is the source of all rendered files. It is appended and flushed when a job finishes, so that a kill loses
at most the current job.
"""

import contextlib
import dataclasses
import datetime as dt
import errno
import io
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.records.not_finite import NOT_FINITE_HINT, not_finite_number
from sdpa_onnx.core.records.records import Record, decode_record, encode_record, is_beyond_budget
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.errors import FolderError, PlanError, RecordFormatError
from sdpa_onnx.graph.files.whole_file import FULL_DISK_HINT, write_whole

__all__ = ["Store", "is_run", "read_run", "utc_timestamp"]

_HEADER = "run.json"
_RECORDS = "records.jsonl"
_SAMPLES = "samples"
_LOCK = ".lock"
_MODELS = "models"


class Store:
    """A run folder that only this process writes; a context manager that holds its lock.

    Raises:
        PlanError: If another run has locked the folder.
    """

    def __init__(self, folder: Path, header: RunHeader) -> None:
        self.folder = folder
        self.header = header
        # One sentence: which finished jobs run again, and why.
        self.reruns = ""
        with _writing(folder):
            self._lock = _take_lock(folder)
            self._file = os.open(folder / _RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    @classmethod
    def create(cls, folder: Path, header: RunHeader) -> Self:
        """Start a run in a new folder.

        Raises:
            PlanError: If the folder already contains a run.
            FolderError: If it cannot be created or written.
        """
        if (folder / _HEADER).exists():
            raise PlanError(
                f"{folder} already contains a run.", hint="Continue it with --resume, or choose another --out."
            )
        if (folder / _RECORDS).exists() and (folder / _RECORDS).stat().st_size:
            raise PlanError(f"{folder} contains records without a {_HEADER}.", hint="Choose another --out.")
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        store = cls(folder, header)
        try:
            store.write_header(header)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def resume(cls, folder: Path, *, check: Callable[[RunHeader], None] | None = None) -> Self:
        """Resume a run: partial lines and records of incomplete jobs are removed first.

        Args:
            folder: The run folder.
            check: Raises if a run with this header must not be resumed; called before anything is written.

        Raises:
            PlanError: If the folder contains no run or another process writes it.
            RecordFormatError: If a complete line cannot be read.
        """
        if (folder / _LOCK).exists() and not (folder / _HEADER).exists():
            raise PlanError(
                f"The run in {folder} stopped before it wrote {_HEADER}, so there is nothing to resume.",
                hint="Free some space if the disk is full, and run without --resume.",
            )
        header = read_header(folder)
        if check is not None:
            check(header)
        store = cls(folder, header)
        try:
            store._repair()
        except BaseException:
            store.close()
            raise
        return store

    def _repair(self) -> None:
        """Remove partial lines and incomplete jobs that a kill left."""
        path = self.folder / _RECORDS
        kept = b"".join(encode_record(record) + b"\n" for record in complete_records(self.folder))
        data = path.read_bytes()
        if kept != data:
            if not data.startswith(kept):  # more than a cut end: the file was edited by hand
                replace_file(path.with_suffix(".jsonl.bak"), data)
            replace_file(path, kept)
            os.close(self._file)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def close(self) -> None:
        """Close the files and release the lock."""
        os.close(self._file)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, records: Sequence[Record]) -> None:
        """Write one job's records in one step and flush them to the disk.

        Raises:
            FolderError: If the disk is full; the file is truncated to its former size.
        """
        data = b"".join(encode_record(record) + b"\n" for record in records)
        size = os.fstat(self._file).st_size
        with _writing(self.folder):
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._file, view) :]
                os.fsync(self._file)
            except OSError:
                os.ftruncate(self._file, size)
                raise

    def arrange(self, jobs: Sequence[str]) -> None:
        """Bring the records into the order of these jobs, once all are done; jobs side by side end in any order.

        Raises:
            FolderError: If the folder cannot be written.
        """
        place = {job: number for number, job in enumerate(jobs)}
        self._rewrite(sorted(complete_records(self.folder), key=lambda record: place.get(record.job, len(place))))

    def forget(self, jobs: Collection[str]) -> None:
        """Remove the records of jobs, which run again.

        Raises:
            FolderError: If the folder cannot be written.
        """
        self._rewrite([record for record in complete_records(self.folder) if record.job not in jobs])

    def _rewrite(self, records: Sequence[Record]) -> None:
        path = self.folder / _RECORDS
        data = b"".join(encode_record(record) + b"\n" for record in records)
        if data != path.read_bytes():
            replace_file(path, data)
            os.close(self._file)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def write_samples(self, cell: str, samples: Mapping[str, NDArray[np.generic]]) -> str:
        """Write raw samples; return their path relative to the folder."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **dict(samples))
        path = self.folder / _SAMPLES / f"{cell}.npz"
        replace_file(path, buffer.getvalue())
        return str(path.relative_to(self.folder))

    def write_model(self, content_hash: str, data: bytes) -> str:
        """Write a graph under its content hash; return its path relative to the folder."""
        path = self.folder / _MODELS / f"{content_hash}.onnx"
        if not path.exists():
            replace_file(path, data)
        return str(path.relative_to(self.folder))

    def write_header(self, header: RunHeader) -> None:
        """Replace run.json."""
        self.header = header
        replace_file(self.folder / _HEADER, msgspec.json.format(msgspec.json.encode(header), indent=2) + b"\n")


def utc_timestamp() -> str:
    """The current time for a header: ISO 8601 in UTC, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def is_run(folder: Path) -> bool:
    """Whether a folder contains a run, readable or not."""
    return (folder / _HEADER).exists()


def read_run(folder: Path) -> tuple[RunHeader, list[Record]]:
    """Read a run, finished or not; if a job ran several times, its last records count.

    Raises:
        PlanError: If the folder contains no run.
        RecordFormatError: If a line cannot be read.
    """
    header = read_header(folder)
    records = complete_records(folder)
    done = len({record.job for record in records if not is_beyond_budget(record)})
    return dataclasses.replace(header, done_cells=done), records


def read_header(folder: Path) -> RunHeader:
    """Read run.json.

    Raises:
        PlanError: If there is none.
        RecordFormatError: If it cannot be read.
    """
    path = folder / _HEADER
    try:
        return msgspec.json.decode(_content(path), type=RunHeader)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PlanError(f"{folder} contains no run.", hint=f"A run folder has a {_HEADER}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # older versions of msgspec raise the second
        if number := not_finite_number(path.read_bytes()):
            raise RecordFormatError(f"{path}: {number}.", hint=NOT_FINITE_HINT) from error
        raise RecordFormatError(f"{path}: {error}.") from error
    except RecursionError as error:
        raise RecordFormatError(f"{path}: it is nested too deeply.") from error


def _content(path: Path) -> bytes:
    """The bytes of a file of a run.

    Raises:
        RecordFormatError: If it is a pipe or a device, of which reading may never end.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise RecordFormatError(f"{path} is not a regular file.", hint="A run folder has files only.")
    return path.read_bytes()


def complete_records(folder: Path) -> list[Record]:
    """Records of complete jobs in the order of the file; of several attempts the last counts.

    Raises:
        RecordFormatError: If a complete line cannot be read.
    """
    path = folder / _RECORDS
    data = _content(path) if path.exists() else b""
    lines = data.split(b"\n")[:-1]  # what follows the last newline was cut short
    found = [decode_record(line, where=f"{path}:{number}") for number, line in enumerate(lines, 1) if line]
    jobs: dict[str, list[Record]] = {}
    for job, lines_of_job in itertools.groupby(found, key=lambda record: record.job):
        complete = [attempt for attempt in _attempts(lines_of_job) if len(attempt) == attempt[0].parts]
        if complete:
            jobs[job] = complete[-1]
    return [record for attempt in jobs.values() for record in attempt]


def _attempts(records: Iterable[Record]) -> list[list[Record]]:
    """Split consecutive records of one job into attempts: a repeated cell starts a new attempt."""
    attempts: list[list[Record]] = []
    cells = set[str]()
    for record in records:
        if not attempts or record.cell in cells:
            attempts.append([])
            cells.clear()
        attempts[-1].append(record)
        cells.add(record.cell)
    return attempts


def replace_file(path: Path, data: bytes) -> None:
    """Write a file completely or not at all; create its folder if needed; follow a link.

    Raises:
        FolderError: If it cannot be written, or the path is not a regular file.
    """
    with _writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data, hint=FULL_DISK_HINT)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise a FolderError with one sentence for a full disk or a read-only folder."""
    try:
        yield
    except OSError as error:
        hint = FULL_DISK_HINT if error.errno == errno.ENOSPC else None
        raise FolderError(f"Cannot write {folder}: {error.strerror or error}.", hint=hint) from error


def _take_lock(folder: Path) -> int:
    """Lock the folder for this process; the system releases the lock when the process ends."""
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        import fcntl
    except ImportError:  # not on Windows, where two runs in one folder are not detected
        return handle
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise PlanError(f"Another run is writing {folder}.", hint="Wait for it, or choose another --out.") from error
    return handle
