"""Files are written whole, through links, and only over a regular file."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sdpa_onnx.errors import FolderError, ModelError, PlanError
from sdpa_onnx.graph.files.whole_file import check_target, write_whole
from sdpa_onnx.sweep.store import replace_file
from tests.graph.models import bare


def test_link_stays_a_link(tmp_path: Path) -> None:
    """What it points to gets the new content, old or not there yet."""
    for name in ("old", "new"):
        target, link = tmp_path / name, tmp_path / f"{name}-link"
        link.symlink_to(target)
        if name == "old":
            target.write_bytes(b"before")
        replace_file(link, b"after")
        assert (link.is_symlink(), target.read_bytes()) == (True, b"after")


@pytest.mark.parametrize("behind_a_link", [False, True])
def test_pipe_stays_a_pipe(tmp_path: Path, behind_a_link: bool) -> None:
    """Neither a store nor a model takes the place of what is not a regular file; nothing waits for a reader."""
    path = pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if behind_a_link:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    with pytest.raises(FolderError) as caught:
        replace_file(path, b"x")
    assert str(caught.value) == f"{path} is not a regular file. Give the name of a file."
    with pytest.raises(ModelError, match="is not a regular file"):
        bare().save(path)
    assert pipe.is_fifo()


def test_folder_stays_a_folder(tmp_path: Path) -> None:
    """It is named."""
    with pytest.raises(PlanError) as caught:
        check_target(tmp_path, failure=PlanError)
    assert str(caught.value) == f"{tmp_path} is a directory. Give the name of a file."


def test_links_that_go_round(tmp_path: Path) -> None:
    """One sentence, as for any other place that cannot be written."""
    path = tmp_path / "a"
    path.symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(path)
    with pytest.raises(FolderError) as caught:
        write_whole(path, b"x")
    assert str(caught.value).startswith(f"Cannot write {path}: ")


def test_long_name(tmp_path: Path) -> None:
    """A name as long as the system takes; one that is longer is told by its own name."""
    longest = tmp_path / ("n" * 255)
    replace_file(longest, b"x")
    assert [path.name for path in tmp_path.iterdir()] == [longest.name]
    longer = tmp_path / ("n" * 256)
    with pytest.raises(FolderError) as caught:
        replace_file(longer, b"x")
    assert str(caught.value) == f"Cannot write {longer}: File name too long."


def test_folder_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found out without writing, also for a folder that is not there yet; root may write anywhere, so it is planted."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    path = tmp_path / "new" / "file"
    with pytest.raises(FolderError) as caught:
        check_target(path)
    assert str(caught.value) == f"Cannot write {path}: {tmp_path} is not writable."


def test_mode_is_that_of_any_new_file(tmp_path: Path) -> None:
    """A report is for others too."""
    usual = tmp_path / "usual"
    usual.touch()
    assert write_whole(tmp_path / "ours", b"x").stat().st_mode == usual.stat().st_mode


def test_content_is_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the content is forced to the disk first, then the file gets its name: a power cut leaves no empty file."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def force(handle: int) -> None:
        events.append(f"{os.fstat(handle).st_size} bytes forced")
        fsync(handle)

    def rename(self: Path, target: Path) -> Path:
        events.append(f"{self.stat().st_size} bytes renamed over {target.read_bytes().decode()}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", force)
    monkeypatch.setattr(Path, "replace", rename)
    write_whole(path, b"new content")
    assert events == ["11 bytes forced", "11 bytes renamed over old"]
    assert path.read_bytes() == b"new content"


def test_content_that_cannot_be_forced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file stays, and no temporary one."""
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def broken(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(FolderError) as caught:
        write_whole(path, b"new")
    assert str(caught.value) == f"Cannot write {path}: Input/output error."
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("file", b"old")]


_KILLED = """
import os, signal, sys
from pathlib import Path
from sdpa_onnx.graph.files.whole_file import write_whole

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

owner = {"fsync": os, "replace": Path}[sys.argv[2]]
setattr(owner, sys.argv[2], killed)
write_whole(Path(sys.argv[1]), b"new" * 100_000)
"""


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_killed_process_leaves_the_old_file(tmp_path: Path, moment: str) -> None:
    """Nothing can catch SIGKILL: what it leaves is a file of another name."""
    path = tmp_path / "index.html"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path), moment], check=False, timeout=240)
    assert (done.returncode, path.read_bytes()) == (-signal.SIGKILL, b"old")
