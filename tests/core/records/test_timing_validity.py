"""What a timing cannot be: planted in a line of a run and in a benchmark JSON, refused with place and field."""

import msgspec
import pytest

from sdpa_onnx.core.compare.benchmark_json import BenchmarkEntry, encode_benchmarks, read_benchmark_json
from sdpa_onnx.core.records.records import Outcome, RatioVerdict, TimingRecord, decode_record, encode_record
from sdpa_onnx.core.records.timing_validity import impossible
from sdpa_onnx.errors import RecordFormatError

GOOD = TimingRecord(
    target="sdpa",
    arm="ort-cpu",
    baseline="torch",
    median_seconds=1e-3,
    median_low=9e-4,
    median_high=1.1e-3,
    wall_min_seconds=9e-4,
    ratio=0.9,
    ratio_low=0.88,
    ratio_high=0.92,
    disturbed=0.0,
    calls=100,
    blocks=20,
    verdict=RatioVerdict.FASTER,
    launches=3,
    confidence=0.99,
    log_ratio_se=0.003,
    degrees=6.0,
    between_sd=0.0057,
    detectable=0.01,
    ratio_wall=0.9,
    ratio_cpu=0.91,
)

RATIO, TOLD = "not between 1e-06 and 1e+06", "not between 1e-12 and 1e+06"
PLANTED: list[tuple[str, object, str]] = [
    *[("ratio", value, f"the ratio {value:g} is {RATIO}") for value in (0.0, -1.0, 1e300, 1e-9)],
    ("ratio_cpu", 1e-320, f"the ratio_cpu {1e-320:g} is {RATIO}"),
    ("ratio_wall", 0.0, f"the ratio_wall 0 is {RATIO}"),
    ("ratio_low", 0.0, "the ratio_low 0 is not between 1e-12 and 1e+12"),
    ("ratio_low", 0.93, "the ratio_low 0.93 is above the ratio_high 0.92"),
    *[("confidence", one, f"the confidence {one:g} is not between 0.5 and 0.999999") for one in (0.1, 1.0, 2.0)],
    *[("log_ratio_se", one, f"the log_ratio_se {one:g} is not between 1e-12 and 10") for one in (0.0, -2.0, 1000.0)],
    ("degrees", 1e-9, "the degrees 1e-09 is not between 1 and 1e+09"),
    *[("launches", one, f"the launches {one} is not between 1 and 1e+12") for one in (0, -4)],
    ("threads", 0, "the threads 0 is not between 1 and 1e+12"),
    ("blocks", -1, "the blocks -1 is not between 1 and 1e+12"),
    ("ratio_cpu", -1.0, f"the ratio_cpu -1 is {RATIO}"),
    ("median_seconds", -1e-3, f"the median_seconds -0.001 is {TOLD}"),
    ("median_high", 1e300, f"the median_high 1e+300 is {TOLD}"),
    ("first_seconds", -2.0, "the first_seconds -2 is not between 0 and 1e+06"),
    ("disturbed", 1.5, "the disturbed 1.5 is not between 0 and 1"),
    *[
        (name, None, f"the {name} is missing")
        for name in ("median_low", "median_high", "ratio", "ratio_low", "ratio_high", "launches", "confidence")
    ],
    ("clock", "sundial", "the clock 'sundial' is neither wall nor cpu"),
    ("cache", "tepid", "the cache 'tepid' is neither warm nor cold"),
]


def test_a_usual_timing_can_be() -> None:
    """As written now, and by versions that told less."""
    assert impossible(GOOD) == ""
    assert impossible(TimingRecord()) == ""
    assert decode_record(encode_record(GOOD), where="x:1") == GOOD


@pytest.mark.parametrize(("name", "value", "told"), PLANTED, ids=[f"{name} {value}" for name, value, _ in PLANTED])
def test_what_cannot_be_is_refused_with_its_field(name: str, value: object, told: str) -> None:
    """In a line of a run and in a benchmark JSON alike; a record that is not OK has no figures to check."""
    spoilt = msgspec.structs.replace(GOOD, **{name: value})
    with pytest.raises(RecordFormatError) as caught:
        decode_record(encode_record(spoilt), where="run/records.jsonl:7")
    assert str(caught.value) == f"run/records.jsonl:7: {told}."
    entry = BenchmarkEntry(name="t", fullname="f::t", group="g", record=spoilt, rounds=[1e-3, 1e-3], iterations=1)
    data = encode_benchmarks([entry], machine_info={}, commit_info={}, ours={}, written="", version="1")
    with pytest.raises(RecordFormatError) as caught:
        read_benchmark_json(data, where="b.json")
    assert str(caught.value) == f"b.json: in f::t, {told}."
    failed = msgspec.structs.replace(spoilt, outcome=Outcome.FAILED, reason="It failed.")
    assert decode_record(encode_record(failed), where="x:1") == failed


def test_a_line_nested_too_deeply_is_refused() -> None:
    """One sentence with the line, no traceback."""
    line = b'{"x":' + b"[" * 100_000
    with pytest.raises(RecordFormatError) as caught:
        decode_record(line, where="run/records.jsonl:7")
    assert str(caught.value) == "run/records.jsonl:7: it is nested too deeply."
