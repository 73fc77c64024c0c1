"""`--sdpa-json`: written completely or not at all, with the commit if there is one."""

import json
import subprocess
from pathlib import Path

import pytest

from sdpa_onnx.core.compare.benchmark_json import BenchmarkEntry
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.errors import FolderError
from sdpa_onnx.measure.environment import environment, versions
from sdpa_onnx.pytest_plugin.json_file import write_json
from sdpa_onnx.workflows.compare.benchmark_file import read_benchmarks

_ENTRY = BenchmarkEntry(
    name="t a", fullname="f::t a", group="t", record=TimingRecord(arm="a"), rounds=[1.0, 2.0], iterations=3
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Our own reader finds the record and the machine."""
    path = tmp_path / "a.json"
    write_json(path, [_ENTRY], root=tmp_path)
    found = read_benchmarks(path)
    assert found.records == (TimingRecord(arm="a"),)
    assert (found.environment, found.versions) == (environment(), versions())


def test_an_old_file_does_not_pass_for_a_new_one(tmp_path: Path) -> None:
    """Without a comparison the file has an empty list."""
    path = tmp_path / "a.json"
    write_json(path, [_ENTRY], root=tmp_path)
    write_json(path, [], root=tmp_path)
    assert read_benchmarks(path).records == ()


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    """A missing folder is one sentence; no other file appears next to the target."""
    with pytest.raises(FolderError) as caught:
        write_json(tmp_path / "none" / "a.json", [_ENTRY], root=tmp_path)
    assert str(caught.value) == f"Cannot write {tmp_path / 'none' / 'a.json'}: No such file or directory."
    assert list(tmp_path.iterdir()) == []


def test_the_commit_is_told(tmp_path: Path) -> None:
    """Its id, time and branch, and whether files differ from it."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    (tmp_path / "f").write_text("1", encoding="utf-8")
    for words in (["init", "-q", "-b", "trunk"], ["add", "f"], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    write_json(tmp_path / "a.json", [_ENTRY], root=tmp_path)
    clean = json.loads((tmp_path / "a.json").read_text())["commit_info"]
    (tmp_path / "f").write_text("2", encoding="utf-8")
    write_json(tmp_path / "a.json", [_ENTRY], root=tmp_path)
    dirty = json.loads((tmp_path / "a.json").read_text())["commit_info"]
    assert (clean["id"], clean["branch"], clean["dirty"], clean["project"]) == (head, "trunk", False, tmp_path.name)
    assert clean["time"].startswith("20")
    assert dirty == {**clean, "dirty": True}


def test_no_commit_is_no_error(tmp_path: Path) -> None:
    """Outside a repository there is none; git must not look above."""
    write_json(tmp_path / "a.json", [_ENTRY], root=tmp_path)
    told = json.loads((tmp_path / "a.json").read_text())["commit_info"]
    assert (told["id"], told["dirty"], told["branch"]) == ("unversioned", False, "(unknown)")
