"""pytest-benchmark's JSON: our files round-trip, foreign files are read, invalid files are rejected."""

import json
from typing import Any

import pytest

from sdpa_onnx.core.compare.benchmark_json import OURS, BenchmarkEntry, encode_benchmarks, read_benchmark_json
from sdpa_onnx.core.records.records import RatioVerdict, TimingRecord
from sdpa_onnx.errors import RecordFormatError

_HINT = "Use a file written by --benchmark-json, --benchmark-autosave or --sdpa-json."
_NEWER = "Read it with the version of sdpa_onnx that wrote it."
_RECORD = TimingRecord(arm="candidate", baseline="baseline", ratio=1.5, verdict=RatioVerdict.SLOWER, confidence=0.99)


def _entry(**changes: Any) -> BenchmarkEntry:
    plain: dict[str, Any] = {
        "name": "test_x candidate",
        "fullname": "test_a.py::test_x candidate",
        "group": "test_x",
        "record": _RECORD,
        "rounds": [1.0, 2.0, 4.0],
        "iterations": 7,
    }
    return BenchmarkEntry(**plain | changes)


def _encoded(*entries: BenchmarkEntry) -> bytes:
    return encode_benchmarks(
        entries,
        machine_info={"machine": "x"},
        commit_info={"id": "abc"},
        ours={"environment": {"cpu": "one"}, "versions": {"numpy": "2"}},
        written="2026-01-02T03:04:05+00:00",
        version="us 1",
    )


def test_what_is_written_is_read_back() -> None:
    """Record, place, machine and versions are read back."""
    found = read_benchmark_json(_encoded(_entry()), where="f.json")
    assert found.records == (_RECORD,)
    assert found.places == ("test_a.py::test_x candidate",)
    assert found.others == ()
    assert (found.environment, found.versions) == ({"cpu": "one"}, {"numpy": "2"})


def test_it_has_what_dashboards_read() -> None:
    """Name, speed, spread, rounds and mean stand where github-action-benchmark looks, the ratio flat beside them."""
    whole = json.loads(_encoded(_entry(param="a", params={"a": object, "b": 1})))
    assert list(whole) == ["machine_info", "commit_info", "benchmarks", "datetime", "version", OURS]
    (told,) = whole["benchmarks"]
    assert told["stats"]["ops"] == pytest.approx(3 / 7)
    assert (told["stats"]["mean"], told["stats"]["rounds"]) == (pytest.approx(7 / 3), 3)
    assert told["stats"]["stddev"] == pytest.approx(1.5275, rel=1e-4)
    assert (told["stats"]["data"], told["stats"]["iterations"]) == ([1.0, 2.0, 4.0], 7)
    assert (told["param"], told["params"]) == ("a", {"a": "<class 'object'>", "b": 1})
    info = told["extra_info"]
    assert (info["ratio"], info["verdict"], info["baseline"], info["confidence"]) == (1.5, "slower", "baseline", 0.99)


def test_an_entry_of_pytest_benchmark_is_read_beside_ours() -> None:
    """It has no verdict: name, median and rounds only."""
    whole = json.loads(_encoded(_entry()))
    whole["benchmarks"].append(
        {"fullname": "test_b.py::test_y", "stats": {"median": 0.5, "rounds": 9, "data": []}, "extra_info": {"x": [1]}}
    )
    found = read_benchmark_json(json.dumps(whole).encode(), where="f.json")
    assert len(found.records) == 1
    assert [(one.fullname, one.median_seconds, one.rounds) for one in found.others] == [("test_b.py::test_y", 0.5, 9)]


def test_a_file_of_pytest_benchmark_alone_is_read() -> None:
    """Without our key there is neither record nor machine."""
    found = read_benchmark_json(b'{"benchmarks": [], "machine_info": {"cpu": {}}, "version": "5"}', where="f.json")
    assert (found.records, found.others, found.environment) == ((), (), {})


def _spoilt(change: str) -> bytes:
    whole = json.loads(_encoded(_entry()))
    (told,) = whole["benchmarks"]
    match change:
        case "ratio":
            told["extra_info"][OURS][0]["ratio"] = "much"
        case "kind":
            told["extra_info"][OURS][0]["kind"] = "export"
        case "median":
            del told["stats"]["median"]
        case "schema":
            told["extra_info"][OURS][0]["schema"] = 99
        case _:
            del whole["benchmarks"]
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            _spoilt("ratio"),
            f"f.json: Expected `float | null`, got `str` - at `$.benchmarks[0].extra_info.sdpa_onnx[0].ratio`. {_HINT}",
        ),
        (
            _spoilt("kind"),
            f"f.json: Invalid value 'export' - at `$.benchmarks[0].extra_info.sdpa_onnx[0].kind`. {_HINT}",
        ),
        (_spoilt("median"), f"f.json: Object missing required field `median` - at `$.benchmarks[0].stats`. {_HINT}"),
        (
            _spoilt("schema"),
            f"f.json: a record has schema 99, this version reads 1 and 2. {_NEWER}",
        ),
        (_spoilt("benchmarks"), f"f.json: Object missing required field `benchmarks`. {_HINT}"),
        (b"", f"f.json: Input data was truncated. {_HINT}"),
        (b"[" * 100_000, None),
        (b"\xff\xfe", None),
    ],
    ids=["ratio", "kind", "median", "schema", "benchmarks", "empty", "deep", "binary"],
)
def test_a_spoilt_file_is_one_sentence(data: bytes, message: str | None) -> None:
    """The file and the field are named."""
    with pytest.raises(RecordFormatError) as caught:
        read_benchmark_json(data, where="f.json")
    assert str(caught.value).startswith("f.json: ")
    assert message is None or str(caught.value) == message
