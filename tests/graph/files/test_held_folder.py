"""Temporary folders of killed processes are removed by the next one; those of living ones stay."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sdpa_onnx.graph.files.held_folder import HeldFolder, remove_left_over

_HOLD = """
import sys
from sdpa_onnx.graph.files.held_folder import HeldFolder
held = HeldFolder("bench")
open(held.name + "/model.onnx", "w").close()
print(held.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_removed_by_its_process(temporary: Path) -> None:
    """At the end of the block, and only then."""
    with HeldFolder("bench") as held:
        (Path(held.name) / "model.onnx").touch()
        remove_left_over(temporary)
        assert (Path(held.name) / "model.onnx").exists()
    assert list(temporary.iterdir()) == []


def test_a_killed_process_leaves_nothing_behind(temporary: Path) -> None:
    """SIGKILL leaves the folder, and the next start removes it, while that of a living process stays."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    killed, living = (
        subprocess.Popen(
            [sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    )
    try:
        names = [Path(process.stdout.readline().strip()) for process in (killed, living) if process.stdout]
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert all((name / "model.onnx").exists() for name in names)
        remove_left_over(temporary)
        assert [name.exists() for name in names] == [False, True]
    finally:
        living.communicate("")
    assert list(temporary.iterdir()) == []


def test_what_is_not_ours_stays(temporary: Path) -> None:
    """A folder of our name without our lock, a file, and a link to a folder."""
    (temporary / "sdpa-onnx-bench-other").mkdir()
    (temporary / "sdpa-onnx-notes.txt").touch()
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / ".held").touch()
    (temporary / "sdpa-onnx-link").symlink_to(temporary / "elsewhere")
    before = sorted(temporary.rglob("*"))
    remove_left_over(temporary)
    assert sorted(temporary.rglob("*")) == before
