"""The only reader and writer of run folders.

records.jsonl is the truth: appended and flushed as each job ends, so that a
kill loses at most the job that was running. Everything rendered is made from it.
"""

import contextlib
import dataclasses
import datetime as dt
import errno
import io
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.records.records import Record, decode_record, encode_record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.errors import FolderError, PlanError, RecordFormatError
from sdpa_onnx.graph.files.whole_file import FULL_DISK_HINT, write_whole

__all__ = ["Store", "is_run", "read_run", "time_now"]

_HEADER = "run.json"
_RECORDS = "records.jsonl"
_SAMPLES = "samples"
_MODELS = "models"


class Store:
    """A run folder that this process alone writes; a context manager that holds its lock.

    Raises:
        PlanError: If another run holds the folder.
    """

    def __init__(self, folder: Path, header: RunHeader) -> None:
        self.folder = folder
        self.header = header
        with _writing(folder):
            self._lock = _take_lock(folder)
            self._file = os.open(folder / _RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    @classmethod
    def create(cls, folder: Path, header: RunHeader) -> Self:
        """Start a run in a new folder.

        Raises:
            PlanError: If the folder holds a run already.
            FolderError: If it cannot be made or written.
        """
        if (folder / _HEADER).exists():
            raise PlanError(f"{folder} holds a run already.", hint="Go on with --resume, or choose another --out.")
        if (folder / _RECORDS).exists() and (folder / _RECORDS).stat().st_size:
            raise PlanError(f"{folder} holds records of a run whose {_HEADER} is gone.", hint="Choose another --out.")
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        store = cls(folder, header)
        store.write_header(header)
        return store

    @classmethod
    def resume(cls, folder: Path) -> Self:
        """Go on with a run: half-written lines and half-done jobs are taken out first.

        Raises:
            PlanError: If the folder holds no run or another process writes it.
            RecordFormatError: If a whole line cannot be read.
        """
        store = cls(folder, read_header(folder))
        try:
            store._repair()
        except BaseException:
            store.close()
            raise
        return store

    def _repair(self) -> None:
        """Take out what a kill left half-written."""
        path = self.folder / _RECORDS
        kept = b"".join(encode_record(record) + b"\n" for record in complete_records(self.folder))
        data = path.read_bytes()
        if kept != data:
            if not data.startswith(kept):  # more than a cut end: somebody's hand was in it
                replace_file(path.with_suffix(".jsonl.bak"), data)
            replace_file(path, kept)
            os.close(self._file)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def close(self) -> None:
        """Let go of the folder."""
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
            FolderError: If the disk is full; what was written of them is taken back.
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

    def write_samples(self, cell: str, samples: Mapping[str, NDArray[np.generic]]) -> str:
        """Keep raw samples; their path relative to the folder."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **dict(samples))
        path = self.folder / _SAMPLES / f"{cell}.npz"
        replace_file(path, buffer.getvalue())
        return str(path.relative_to(self.folder))

    def write_model(self, content_hash: str, data: bytes) -> str:
        """Keep a graph that ran, by content; its path relative to the folder."""
        path = self.folder / _MODELS / f"{content_hash}.onnx"
        if not path.exists():
            replace_file(path, data)
        return str(path.relative_to(self.folder))

    def write_header(self, header: RunHeader) -> None:
        """Replace run.json."""
        self.header = header
        replace_file(self.folder / _HEADER, msgspec.json.format(msgspec.json.encode(header), indent=2) + b"\n")


def time_now() -> str:
    """For a header: ISO 8601 in UTC, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, readable or not."""
    return (folder / _HEADER).exists()


def read_run(folder: Path) -> tuple[RunHeader, list[Record]]:
    """Read a run, finished or not; of a cell done again the last record counts.

    Raises:
        PlanError: If the folder holds no run.
        RecordFormatError: If a line cannot be read.
    """
    header = read_header(folder)
    records = complete_records(folder)
    done = len({record.job for record in records})
    return dataclasses.replace(header, done_cells=done), records


def read_header(folder: Path) -> RunHeader:
    """Read run.json.

    Raises:
        PlanError: If there is none.
        RecordFormatError: If it cannot be read.
    """
    path = folder / _HEADER
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunHeader)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PlanError(f"{folder} holds no run.", hint=f"A run folder has a {_HEADER}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # older msgspec lets the second through
        raise RecordFormatError(f"{path}: {error}.") from error
    except RecursionError as error:
        raise RecordFormatError(f"{path}: it is nested too deeply.") from error


def complete_records(folder: Path) -> list[Record]:
    """Records of complete jobs in the order of the file; of a job done again the last attempt counts.

    Raises:
        RecordFormatError: If a whole line cannot be read.
    """
    path = folder / _RECORDS
    data = path.read_bytes() if path.exists() else b""
    lines = data.split(b"\n")[:-1]  # what follows the last newline was cut short
    found = [decode_record(line, where=f"{path}:{number}") for number, line in enumerate(lines, 1) if line]
    jobs: dict[str, list[Record]] = {}
    for job, lines_of_job in itertools.groupby(found, key=lambda record: record.job):
        complete = [attempt for attempt in _attempts(lines_of_job) if len(attempt) == attempt[0].parts]
        if complete:
            jobs[job] = complete[-1]
    return [record for attempt in jobs.values() for record in attempt]


def _attempts(records: Iterable[Record]) -> list[list[Record]]:
    """Neighbouring records of one job, cut where a cell comes again: the job was done again."""
    attempts: list[list[Record]] = []
    for record in records:
        if not attempts or record.cell in {other.cell for other in attempts[-1]}:
            attempts.append([])
        attempts[-1].append(record)
    return attempts


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and its folder if it is not there; a link is followed.

    Raises:
        FolderError: If it cannot be written, or what is there is not a regular file.
    """
    with _writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data, hint=FULL_DISK_HINT)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Tell a full disk or a read-only folder in one sentence."""
    try:
        yield
    except OSError as error:
        hint = FULL_DISK_HINT if error.errno == errno.ENOSPC else None
        raise FolderError(f"Cannot write {folder}: {error.strerror or error}.", hint=hint) from error


def _take_lock(folder: Path) -> int:
    """Hold the folder for this process; the system frees it however the process ends."""
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        import fcntl
    except ImportError:  # not on Windows; two runs in one folder are then not noticed
        return handle
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise PlanError(f"Another run is writing {folder}.", hint="Wait for it, or choose another --out.") from error
    return handle
