"""The chart of `bench` as a file: the picture, or the page with verdict, tables and data."""

import json
from pathlib import Path

import pytest

from sdpa_onnx.errors import FolderError
from sdpa_onnx.report.page.bench_page import write_chart
from tests.report.page.elements import Parsed, require_text_only
from tests.report.synthetic_bench import BASELINE, benched, failed, over_lengths, timing


def test_nothing_to_draw(tmp_path: Path) -> None:
    """Without a time no file is written."""
    assert not write_chart([benched(failed(BASELINE, "It crashed."))], tmp_path / "c.svg")
    assert list(tmp_path.iterdir()) == []


def test_one_arm_alone(tmp_path: Path) -> None:
    """A baseline without rivals is drawn too."""
    assert write_chart([benched(timing(BASELINE))], tmp_path / "c.svg")


def test_lengths_as_svg(tmp_path: Path) -> None:
    """The picture is complete and contains the names of the arms."""
    assert write_chart(over_lengths({128: 1.25, 512: 0.8}), tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text()
    assert text.startswith("<svg")
    assert "ort-cpu" in text


def test_page(tmp_path: Path) -> None:
    """The page has the verdict, the chart, all lengths in one table, and the records; no name becomes code."""
    hostile = "</script><!--<img src=x onerror=alert(1)>"
    found = over_lengths({128: 1.25, 256: 1.1, 384: 1.0, 512: 0.9, 1024: 0.8})
    broken = benched(timing(BASELINE, length=2048), failed(hostile, hostile, length=2048), length=2048)
    assert write_chart([*found, broken], tmp_path / "c.html")
    text = (tmp_path / "c.html").read_text()
    require_text_only(text, scripts=6)
    page = Parsed(text)
    assert page.texts("p", class_="first")[0].startswith(
        "ort-cpu is faster than torch at 2 and slower at 2 of 5 sizes."
    )
    assert page.texts("h3").count("Ratio to torch over kv_seq_len") == 1
    assert len(json.loads("".join(page.texts("script", id="records")))) == 12
    assert any(hostile in line for line in page.texts("li"))


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    """A chart that cannot be written is an error, not a half file."""
    with pytest.raises((FolderError, OSError)):
        write_chart([benched(timing(BASELINE))], tmp_path / "none" / "c.svg")
