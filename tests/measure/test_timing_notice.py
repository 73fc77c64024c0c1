"""Two timings on one machine tell each other; tried with real processes."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sdpa_onnx.measure.timing_notice import TimingNotice, announced, notice_folder

_OTHER = """
import sys
from pathlib import Path
from sdpa_onnx.measure.timing_notice import announced
with announced(Path(sys.argv[1])) as notice:
    print("here", flush=True)
    sys.stdin.readline()
    print(*notice.others(), flush=True)
    sys.stdin.readline()
"""


def _start(folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _OTHER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert _line(process) == "here"
    return process


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_hear_of_each_other(tmp_path: Path) -> None:
    """Whoever came first, and also of one that has ended meanwhile."""
    with announced(tmp_path) as notice:
        assert notice.warnings() == ()
        process = _start(tmp_path)
        _tell(process)
        assert _line(process) == str(os.getpid())
        _tell(process)
        assert process.wait(10) == 0
        assert notice.warnings() == (f"Another timing of sdpa_onnx (process {process.pid}) ran at the same time.",)
    assert list(tmp_path.iterdir()) == []


def test_many_timings_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number, not each of them."""
    monkeypatch.setattr(TimingNotice, "others", lambda _: (7, 8, 9))
    told = ("Another timing of sdpa_onnx (3 processes) ran at the same time.",)
    assert TimingNotice(folder=Path()).warnings() == told


def test_a_killed_process_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its file is taken away by the next timing, which is not warned."""
    process = _start(tmp_path)
    process.kill()
    process.wait(10)
    assert len(list(tmp_path.glob("*.lock"))) == 1
    with announced(tmp_path) as notice:
        assert notice.others() == ()
        assert [path.name for path in tmp_path.glob("*.lock")] == [notice.name]


def test_two_timings_of_one_process_do_not_warn(tmp_path: Path) -> None:
    """They follow each other, or the caller knows."""
    with announced(tmp_path), announced(tmp_path) as second:
        assert second.others() == ()


@pytest.mark.parametrize("make", [lambda path: path.write_text(""), lambda path: path.symlink_to("/nowhere/at/all")])
def test_a_folder_that_cannot_be_used_is_no_error(tmp_path: Path, make: object) -> None:
    """A file or a dead link is in its place."""
    assert callable(make)
    make(tmp_path / "taken")
    with announced(tmp_path / "taken") as notice:
        assert (notice.handle, notice.warnings()) == (None, ())


def test_files_of_others_are_not_followed(tmp_path: Path) -> None:
    """A link under such a name is not written through, and what is no notice is left alone."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "1-2-abcd.lock").symlink_to(victim)
    (folder / "something.lock").write_text("")
    with victim.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with announced(folder) as notice:
            assert notice.others() == ()
    assert victim.read_text() == "kept"
    assert (folder / "something.lock").exists()


def test_the_folder_is_shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every user may announce a timing, and only the owner may take a file away."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    with announced(notice_folder()):
        assert notice_folder().stat().st_mode & 0o7777 == 0o1777
