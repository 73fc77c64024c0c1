"""A file of benchmarks is read, and an unreadable one is an error."""

from pathlib import Path

import pytest

from sdpa_onnx.errors import RecordFormatError
from sdpa_onnx.workflows.compare.benchmark_file import read_benchmarks


def test_a_file_is_read(tmp_path: Path) -> None:
    """The records of the file are returned."""
    path = tmp_path / "a.json"
    path.write_text('{"benchmarks": [{"fullname": "a", "stats": {"median": 1, "rounds": 2}}]}', encoding="utf-8")
    assert [other.fullname for other in read_benchmarks(path).others] == ["a"]


def test_no_file_is_one_sentence(tmp_path: Path) -> None:
    """A missing file, and a folder, are named in the error."""
    with pytest.raises(RecordFormatError) as caught:
        read_benchmarks(tmp_path / "none.json")
    assert str(caught.value) == f"Cannot read {tmp_path / 'none.json'}: No such file or directory."
    with pytest.raises(RecordFormatError) as caught:
        read_benchmarks(tmp_path)
    assert str(caught.value) == f"Cannot read {tmp_path}: Is a directory."


def test_a_spoilt_file_is_named(tmp_path: Path) -> None:
    """The error starts with the path."""
    path = tmp_path / "a.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(RecordFormatError, match="Object missing required field `benchmarks`") as caught:
        read_benchmarks(path)
    assert str(caught.value).startswith(f"{path}: ")
