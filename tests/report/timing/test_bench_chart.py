"""The chart of `bench`: what is drawn, and what would draw nothing."""

import json
from pathlib import Path
from typing import Any

import altair as alt
import pytest
import vl_convert

from sdpa_onnx.errors import FolderError
from sdpa_onnx.report.timing.bench_chart import _to_html, bench_chart, write_chart
from sdpa_onnx.workflows.bench.bench_files import BenchResult
from tests.report.synthetic_bench import BASELINE, benched, failed, over_lengths, timing


def _drawn(*results: BenchResult) -> dict[str, Any]:
    chart = bench_chart(results)
    assert chart is not None
    found: dict[str, Any] = json.loads(chart.to_json())
    return found


def _values(drawn: dict[str, Any], **keys: object) -> list[dict[str, Any]]:
    """The rows of all data of the chart that have these keys, or these keys and values."""
    rows = [row for data in drawn["datasets"].values() for row in data]
    return [row for row in rows if all(name in row and value in (..., row[name]) for name, value in keys.items())]


def test_lengths_are_a_line() -> None:
    """Times of every arm in one unit on the left, ratios without the baseline on the right, over the length."""
    drawn = _drawn(*over_lengths({128: 0.8, 256: 0.9}))
    torch = [(row["x"], row["y"]) for row in _values(drawn, series="torch")]
    assert torch == [(128, pytest.approx(1000)), (256, pytest.approx(1000))]
    arm = sorted((row["x"], row["y"]) for row in _values(drawn, series="ort-cpu"))
    assert arm == [(128, 0.8), (128, pytest.approx(800)), (256, 0.9), (256, pytest.approx(900))]
    assert all(row["low"] < row["y"] < row["high"] for row in _values(drawn, series="ort-cpu"))


def _crossings(ratios: dict[int, float]) -> list[float]:
    return [row["x"] for row in _values(_drawn(*over_lengths(ratios)), x=...) if len(row) == 1]


def test_crossover_is_drawn() -> None:
    """A line is drawn where the order is proven to change, and nowhere else."""
    assert _crossings({128: 1.25, 512: 0.8}) == [pytest.approx(256)]
    assert _crossings({128: 1.25, 512: 1.2}) == []


def test_one_size_is_a_row_an_arm() -> None:
    """Without a length the arms are listed below each other, in the order of the table, and need no legend."""
    drawn = _drawn(benched(timing(BASELINE), timing("b", 1.1), timing("a", 0.9)))
    text = json.dumps(drawn)
    assert '"domain": ["torch", "b", "a"]' in text
    assert '"legend": null' in text
    assert drawn["title"]["subtitle"] == [
        "batch_size=1, q_seq_len=128, kv_seq_len=128, float32, 1 thread, wall time, bars: 99 % interval of the ratio"
    ]


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


@pytest.mark.slow
def test_page(tmp_path: Path) -> None:
    """The page needs nothing from anywhere."""
    assert write_chart(over_lengths({128: 1.25, 512: 0.8}), tmp_path / "c.html")
    page = (tmp_path / "c.html").read_text()
    assert "<html" in page
    assert 'src="http' not in page


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    """A chart that cannot be written is an error, not a half file."""
    with pytest.raises((FolderError, OSError)):
        write_chart([benched(timing(BASELINE))], tmp_path / "none" / "c.svg")


def test_a_name_does_not_end_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page holds the definition inside <script>, as the drawing library writes it."""

    def written(told: str, *, bundle: bool) -> str:
        assert bundle
        return json.dumps(json.loads(told), ensure_ascii=False)

    monkeypatch.setattr(vl_convert, "vegalite_to_html", written)
    values = alt.InlineData(values=[{"arm": "</script><!--<script>alert(1)"}])
    page = _to_html(alt.hconcat(alt.Chart(values).mark_point().encode(x="arm:N")))
    assert "</" not in page
    assert "<!" not in page
    assert "alert(1)" in page
