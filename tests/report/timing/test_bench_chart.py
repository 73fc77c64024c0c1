"""The chart of `bench`: what is drawn, and what would draw nothing."""

import json
from typing import Any

import pytest

from sdpa_onnx.report.timing.bench_chart import bench_chart
from sdpa_onnx.workflows.bench.bench_files import BenchResult
from tests.report.synthetic_bench import BASELINE, benched, over_lengths, timing


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
