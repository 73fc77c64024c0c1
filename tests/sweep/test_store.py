"""The run folder: nothing finished is lost, nothing is there twice, nothing half-written is read."""

import errno
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Outcome, encode_record
from sdpa_onnx.errors import FolderError, PlanError, RecordFormatError
from sdpa_onnx.sweep import store as run_store
from sdpa_onnx.sweep.store import Store, complete_records, read_run
from tests.sweep.suites import FULL_DISK_HINT, HEADER, job_records

_A, _B, _C = job_records("a", parts=2), job_records("b"), job_records("c", parts=3)


def _filled(folder: Path) -> Path:
    with Store.create(folder, HEADER) as store:
        for records in (_A, _B, _C):
            store.append(records)
    return folder


def _bytes(records: list) -> bytes:  # type: ignore[type-arg]
    return b"".join(encode_record(record) + b"\n" for record in records)


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    """Records are read back equal and in order, with the jobs done counted."""
    header, records = read_run(_filled(tmp_path / "run"))
    assert records == [*_A, *_B, *_C]
    assert (header.suite, header.planned_cells, header.done_cells, header.is_finished) == ("t", 3, 3, False)


def test_file_is_one_record_a_line(tmp_path: Path) -> None:
    """records.jsonl follows DESIGN: one JSON object per line, each with schema and kind."""
    lines = (_filled(tmp_path / "run") / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == [
        "agreement",
        "timing",
        "agreement",
        "agreement",
        "timing",
        "timing",
    ]
    assert {json.loads(line)["schema"] for line in lines} == {2}


def test_torn_at_every_byte_of_the_last_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a kill cuts the last job, the others stay complete, and resuming drops exactly the torn one."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of waits for the disk test nothing here
    folder, path = tmp_path / "run", tmp_path / "run" / "records.jsonl"
    first, last = [ExportRecord(job="a")], [ExportRecord(job="b", parts=2, cell=cell) for cell in ("x", "y")]
    with Store.create(folder, HEADER) as store:
        store.append(first)
        store.append(last)
    whole, kept = path.read_bytes(), _bytes(first)
    for size in range(len(kept), len(whole)):
        path.write_bytes(whole[:size])
        assert complete_records(folder) == first, size
        with Store.resume(folder) as store:
            assert path.read_bytes() == kept, size
            store.append(last)
        assert path.read_bytes() == whole, size
    assert sorted(entry.name for entry in folder.iterdir()) == [".lock", "records.jsonl", "run.json"]


def test_whole_file_is_left_as_it_is(tmp_path: Path) -> None:
    """Resuming a run without a torn tail rewrites nothing."""
    path = _filled(tmp_path / "run") / "records.jsonl"
    before = path.stat()
    Store.resume(path.parent).__exit__(None, None, None)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_failed_job_done_again_replaces(tmp_path: Path) -> None:
    """Of a job done twice the last attempt counts, with all its records and no other."""
    with Store.create(tmp_path / "run", HEADER) as store:
        store.append(job_records("a", outcome=Outcome.FAILED, reason="broken"))
        store.append(_B)
        store.append(_A)
    header, records = read_run(tmp_path / "run")
    assert sorted(record.cell for record in records) == ["a-0", "a-1", "b-0"]
    assert {record.outcome for record in records} == {Outcome.OK}
    assert header.done_cells == 2
    Store.resume(tmp_path / "run").__exit__(None, None, None)
    assert read_run(tmp_path / "run")[1] == records


def test_of_attempts_in_a_row_the_last_counts(tmp_path: Path) -> None:
    """A job that was done three times with nothing in between: not its first attempt, nor the last, which is cut."""
    folder = tmp_path / "run"
    with Store.create(folder, HEADER) as store:
        for reason in ("first", "second"):
            store.append(job_records("a", parts=2, outcome=Outcome.FAILED, reason=reason))
        store.append(_A[:1])
    assert [record.reason for record in read_run(folder)[1]] == ["second", "second"]


def test_run_that_exists_is_not_started_again(tmp_path: Path) -> None:
    """A folder with a run is left alone without --resume."""
    folder = _filled(tmp_path / "run")
    with pytest.raises(PlanError) as caught:
        Store.create(folder, HEADER)
    assert str(caught.value) == f"{folder} already contains a run. Continue it with --resume, or choose another --out."
    assert len(read_run(folder)[1]) == 6


def test_second_run_in_one_process_is_refused(tmp_path: Path) -> None:
    """While one run holds the folder a second gets one sentence, and the first goes on."""
    with Store.create(tmp_path / "run", HEADER) as store:
        with pytest.raises(PlanError) as caught:
            Store.resume(tmp_path / "run")
        assert str(caught.value) == (
            f"Another run is writing {tmp_path / 'run'}. Wait for it, or choose another --out."
        )
        store.append(_A)
    assert read_run(tmp_path / "run")[1] == _A


def _hold(folder: Path, ready: Callable[[], object], release: Callable[[], object]) -> None:
    with Store.resume(folder):
        ready()
        release()


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    """A second process is refused while the first lives; a kill frees the folder."""
    folder = _filled(tmp_path / "run")
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(folder, ready.set, release.wait))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(PlanError) as caught:
            Store.resume(folder)
        assert str(caught.value) == f"Another run is writing {folder}. Wait for it, or choose another --out."
    finally:
        other.kill()
        other.join()
    with Store.resume(folder) as store:
        store.append(job_records("d"))
    assert len(read_run(folder)[1]) == 7


def _full_after(amount: int) -> Callable[[int, bytes], int]:
    """os.write that accepts some bytes and then finds the disk full."""
    left = amount
    write = os.write

    def partial(handle: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(handle, bytes(data)[: min(left, 5)])
        left -= done
        return done

    return partial


@pytest.mark.parametrize("amount", [0, 1, 7, 400])
def test_full_disk_takes_back_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amount: int) -> None:
    """When the disk fills up inside a job, the file ends with the job before, and a later resume goes on."""
    folder = tmp_path / "run"
    with Store.create(folder, HEADER) as store:
        store.append(_A)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", _full_after(amount))
            with pytest.raises(FolderError) as caught:
                store.append(_C)
        assert str(caught.value) == f"Cannot write {folder}: No space left on device. {FULL_DISK_HINT}"
        assert (folder / "records.jsonl").read_bytes() == _bytes(_A)
    with Store.resume(folder) as store:
        store.append(_C)
    assert read_run(folder)[1] == [*_A, *_C]


def test_a_job_is_on_the_disk_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job is written, then forced to the disk, and only then the next one is written: a power cut loses none."""
    events: list[tuple[str, int]] = []
    write, fsync = os.write, os.fsync

    def written(handle: int, data: bytes) -> int:
        done = write(handle, bytes(data)[:300])
        events.append(("written", os.fstat(handle).st_size))
        return done

    def forced(handle: int) -> None:
        fsync(handle)
        events.append(("forced", os.fstat(handle).st_size))

    folder = tmp_path / "run"
    with Store.create(folder, HEADER) as store:
        monkeypatch.setattr(os, "write", written)
        monkeypatch.setattr(os, "fsync", forced)
        for number, records in enumerate((_A, _B, _C), 1):
            store.append(records)
            size = (folder / "records.jsonl").stat().st_size
            assert events[-2:] == [("written", size), ("forced", size)]
            assert [event for event, _ in events].count("forced") == number


def test_a_disk_that_fails_takes_the_job_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that could not be forced to the disk are reported as not written, and the file ends before them."""
    folder = tmp_path / "run"

    def broken(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Store.create(folder, HEADER) as store:
        store.append(_A)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            with pytest.raises(FolderError) as caught:
                store.append(_C)
        assert str(caught.value) == f"Cannot write {folder}: Input/output error."
        assert (folder / "records.jsonl").read_bytes() == _bytes(_A)


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that accepts a few bytes at a time still gets the whole job."""
    monkeypatch.setattr(os, "write", _full_after(1_000_000))
    assert read_run(_filled(tmp_path / "run"))[1] == [*_A, *_B, *_C]


def test_full_disk_keeps_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If run.json cannot be written again, the old one stays and no temporary file is left."""
    folder = _filled(tmp_path / "run")
    before = (folder / "run.json").read_bytes()

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Store.resume(folder) as store:
        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(FolderError) as caught:
            store.write_header(HEADER)
    assert str(caught.value) == f"Cannot write {folder / 'run.json'}: No space left on device. {FULL_DISK_HINT}"
    assert (folder / "run.json").read_bytes() == before
    assert sorted(entry.name for entry in folder.iterdir()) == [".lock", "records.jsonl", "run.json"]


def test_folder_below_a_file(tmp_path: Path) -> None:
    """A folder that not even root can make is one sentence."""
    (tmp_path / "file").write_bytes(b"x")
    folder = tmp_path / "file" / "run"
    with pytest.raises(FolderError) as caught:
        Store.create(folder, HEADER)
    assert str(caught.value) == f"Cannot write {folder}: Not a directory."


@pytest.mark.parametrize("there", [True, False])
def test_folder_without_a_run(tmp_path: Path, there: bool) -> None:
    """An empty or missing folder holds no run, to read or to resume, and nothing is written into it."""
    folder = tmp_path / "run"
    if there:
        folder.mkdir()
    for read in (read_run, Store.resume):
        with pytest.raises(PlanError) as caught:
            read(folder)
        assert str(caught.value) == f"{folder} contains no run. A run folder has a run.json."
    assert not there or list(folder.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_run_that_never_wrote_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A full disk leaves a folder without run.json: one sentence on --resume, and the same command runs without it."""
    folder = tmp_path / "run"

    def full(*_: object, **__: object) -> None:
        raise FolderError(f"Cannot write {folder}: {os.strerror(number)}.")

    with monkeypatch.context() as patched:
        patched.setattr(run_store, "write_whole", full)
        with pytest.raises(FolderError):
            Store.create(folder, HEADER)
    with pytest.raises(PlanError) as caught:
        Store.resume(folder)
    assert str(caught.value) == (
        f"The run in {folder} stopped before it wrote run.json, so there is nothing to resume. "
        "Free some space if the disk is full, and run without --resume."
    )
    with Store.create(folder, HEADER):
        pass
    assert read_run(folder) == (HEADER, [])


def test_run_without_records_yet(tmp_path: Path) -> None:
    """A run that was killed before its first record is a run with nothing done."""
    folder = tmp_path / "run"
    Store.create(folder, HEADER).__exit__(None, None, None)
    (folder / "records.jsonl").unlink()
    assert read_run(folder) == (HEADER, [])


_GARBAGE = {
    "text": (b"hello", "JSON is malformed: invalid character (byte 0)"),
    "no-kind": (b"{}", "Object missing required field `kind`"),
    "kind": (b'{"kind":"mystery"}', "Invalid value 'mystery' - at `$.kind`"),
    "type": (b'{"kind":"timing","calls":"x"}', "Expected `int | null`, got `str` - at `$.calls`"),
}


@pytest.mark.parametrize(("line", "words"), _GARBAGE.values(), ids=_GARBAGE)
def test_line_that_is_no_record(tmp_path: Path, line: bytes, words: str) -> None:
    """A complete line that cannot be read is reported with file and line, on read and on resume, and is not dropped."""
    folder = _filled(tmp_path / "run")
    path = folder / "records.jsonl"
    path.write_bytes(_bytes(_A) + line + b"\n" + _bytes(_B))
    before = path.read_bytes()
    for read in (read_run, Store.resume):
        with pytest.raises(RecordFormatError) as caught:
            read(folder)
        assert str(caught.value) == f"{path}:3: {words}."
    assert path.read_bytes() == before


def test_damaged_header(tmp_path: Path) -> None:
    """A run.json that cannot be read is reported with its path."""
    folder = _filled(tmp_path / "run")
    (folder / "run.json").write_text("{")
    with pytest.raises(RecordFormatError) as caught:
        read_run(folder)
    assert str(caught.value) == f"{folder / 'run.json'}: Input data was truncated."


def test_refused_resume_frees_the_folder(tmp_path: Path) -> None:
    """After a resume that failed on a damaged line the folder can be opened once the line is repaired."""
    folder = _filled(tmp_path / "run")
    path = folder / "records.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"hello\n" + whole)
    with pytest.raises(RecordFormatError) as caught:
        Store.resume(folder)
    path.write_bytes(whole)
    assert caught.value is not None  # the traceback holds the frame, and with it what was left open
    Store.resume(folder).__exit__(None, None, None)


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="open files cannot be counted here")
def test_no_file_stays_open(tmp_path: Path) -> None:
    """A sweep opens one run after the other, also ones that a kill cut."""
    before = len(list(Path("/dev/fd").iterdir()))
    path = _filled(tmp_path / "run") / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    with Store.resume(path.parent) as store:
        store.append(_C)
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_samples_and_models_are_kept_whole(tmp_path: Path) -> None:
    """Raw samples are read back exactly; a graph is named by its hash and written once."""
    with Store.create(tmp_path / "run", HEADER) as store:
        samples = store.write_samples("cell", {"wall_seconds": np.array([[0.1, 0.2]])})
        model = store.write_model("h" * 64, b"graph")
        store.write_model("h" * 64, b"another graph of the same hash")
    assert (samples, model) == ("samples/cell.npz", f"models/{'h' * 64}.onnx")
    with np.load(tmp_path / "run" / samples) as archive:
        assert archive["wall_seconds"].tolist() == [[0.1, 0.2]]
    assert (tmp_path / "run" / model).read_bytes() == b"graph"


def _three_jobs(folder: Path) -> list[bytes]:
    """Three finished jobs, the middle one of three records; the lines of the file."""
    with Store.create(folder, HEADER) as store:
        for job, parts in (("a", 1), ("b", 3), ("c", 1)):
            store.append([AgreementRecord(job=job, cell=f"{job}{number}", parts=parts) for number in range(parts)])
    return (folder / "records.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(("change", "jobs"), [("doubled", "abc"), ("lost", "ac")])
def test_a_line_too_many_or_too_few_touches_its_own_job_only(tmp_path: Path, change: str, jobs: str) -> None:
    """A doubled line is passed over, a lost one voids its job; the neighbours stay, and the old file is kept."""
    lines = _three_jobs(tmp_path)
    changed = [*lines[:2], lines[1], *lines[2:]] if change == "doubled" else [*lines[:1], *lines[2:]]
    (tmp_path / "records.jsonl").write_bytes(b"".join(changed))
    Store.resume(tmp_path).close()
    _, records = read_run(tmp_path)
    assert "".join(dict.fromkeys(record.job for record in records)) == jobs
    assert len(records) == len({record.cell for record in records})
    assert (tmp_path / "records.jsonl.bak").read_bytes() == b"".join(changed)


def test_records_without_their_header_are_not_mixed_with_a_new_run(tmp_path: Path) -> None:
    """A folder whose run.json is gone is refused; its records are of another run."""
    _three_jobs(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(PlanError, match=r"contains records without a run\.json"):
        Store.create(tmp_path, HEADER)
