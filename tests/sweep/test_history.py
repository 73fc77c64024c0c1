"""A folder of runs of which one is spoilt: it is named with its fault, and the others are read."""

from pathlib import Path

import pytest

from sdpa_onnx.core.compare.history import history_of
from sdpa_onnx.core.records.records import TimingRecord, encode_record
from sdpa_onnx.sweep.history import read_runs
from sdpa_onnx.sweep.store import Store
from tests.sweep.suites import HEADER

_GOOD = TimingRecord(arm="a", baseline="b", ratio=0.9, ratio_low=0.88, ratio_high=0.92, confidence=0.99)
_DEEP = b'{"x":' + b"[" * 100_000 + b"\n"
_SPOILT = [
    ("records.jsonl", b'"ratio":0.9', b'"ratio":0.0', ":1: the ratio 0 is not between 1e-06 and 1e+06."),
    ("records.jsonl", b'"ratio":0.9', b'"ratio":-1.0', ":1: the ratio -1 is not between 1e-06 and 1e+06."),
    ("records.jsonl", b'"ratio":0.9', b'"ratio":1e300', ":1: the ratio 1e+300 is not between 1e-06 and 1e+06."),
    ("records.jsonl", b'"confidence":0.99', b'"confidence":1', ":1: the confidence 1 is not between 0.5 and 0.999999."),
    ("records.jsonl", b'"confidence":0.99', b'"confidence":2', ":1: the confidence 2 is not between 0.5 and 0.999999."),
    ("records.jsonl", None, _DEEP, ":1: it is nested too deeply."),
    ("run.json", None, _DEEP, ": it is nested too deeply."),
    ("run.json", None, b"\xff", ": JSON is malformed: invalid character (byte 0)."),
]


@pytest.mark.parametrize(("file", "old", "new", "told"), _SPOILT, ids=[ascii(one[2][:20]) for one in _SPOILT])
def test_one_spoilt_run_is_named_and_the_others_go_on(
    tmp_path: Path, file: str, old: bytes | None, new: bytes, told: str
) -> None:
    """What cannot be read is no reason not to read the rest."""
    for name in ("good", "spoilt"):
        with Store.create(tmp_path / name, HEADER) as store:
            store.append([_GOOD])
    path = tmp_path / "spoilt" / file
    whole = path.read_bytes()
    path.write_bytes(new if old is None else whole.replace(old, new))
    assert path.read_bytes() != whole
    read = read_runs(tmp_path)
    assert [run.name for run in read.runs] == ["good"]
    assert read.skipped == {"spoilt": f"{path}{told}"}
    assert history_of(read.runs, read.skipped).skipped["spoilt"] == read.skipped["spoilt"]


def test_the_good_line_is_what_the_faults_are_planted_in() -> None:
    """Each fault replaces something that is in the line."""
    line = encode_record(_GOOD)
    assert all(old in line for _, old, _, _ in _SPOILT if old is not None)
