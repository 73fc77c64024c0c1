"""What is not known is None: no field of a record of a failure holds a number that reads like a measurement."""

import json
import types
from typing import Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from sdpa_onnx.core.records.earlier_schema import earlier_number
from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import Outcome, Record, Sizes, TimingRecord, decode_record, encode_record
from tests.core.record_figures import SETTINGS, figures_of

_KINDS: tuple[type[Record], ...] = get_args(Record)
_FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.UNSUPPORTED, Outcome.SKIPPED)


@pytest.mark.parametrize("outcome", _FAILURES)
@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
def test_a_failure_has_no_figures(kind: type[Record], outcome: Outcome) -> None:
    """Of every kind and outcome, in memory, in JSON and read again."""
    record = kind(outcome=outcome, reason="It does not run.")
    assert figures_of(record) == {}
    written = json.loads(encode_record(record))
    assert [name for name, value in written.items() if _is_number(value) and name not in SETTINGS] == []
    assert figures_of(decode_record(encode_record(record), where="x:1")) == {}


@pytest.mark.parametrize("kind", [*_KINDS, Sizes], ids=lambda kind: kind.__name__)
def test_a_number_is_none_unless_it_is_given(kind: type[msgspec.Struct]) -> None:
    """A new field cannot bring a placeholder back: each number that is no setting may be None, and is by default."""
    settings = SETTINGS - set(Sizes.__struct_fields__) if kind is Sizes else SETTINGS
    for name, hint in get_type_hints(kind).items():
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if name not in settings and any(option in (int, float, bool) for option in options):
            assert type(None) in options, name
            assert getattr(kind(), name) is None, name


# A failed or refused record of each kind as schema 1 wrote it, and a number in it that was none.
_EARLIER = {
    "timing": {"outcome": "failed", "ratio": 1.0, "median_seconds": 0.0, "launches": 1, "confidence": 0.95},
    "agreement": {"outcome": "timed-out", "cosine": 1.0, "max_bound_ratio": 0.0, "kappa": -1.0, "judged_rows": 0},
    "conformance": {"outcome": "unsupported", "verdict": "refused", "max_abs_error": 0.0, "cases": 0, "path_nodes": 0},
    "export": {"outcome": "failed", "seconds": 0.0, "sizes_tried": 0},
    "located": {"outcome": "failed", "max_abs_error": 0.0, "allowed": 0.0, "judged": 0},
    "form": {"outcome": "unsupported", "ratio": 0.0, "median_seconds": 0.0, "probes": 0, "past_seq_len": -1},
    "gate": {"outcome": "skipped", "ratio": -1.0, "amount": -1.0, "head_bytes": -1, "threads": 0},
    "saturation": {"outcome": "failed", "rows": 0, "draws": 0},
    "attention": {"outcome": "failed", "sizes_tried": 0},
}


@pytest.mark.parametrize("kind", _EARLIER)
def test_earlier_placeholders_are_read_as_none(kind: str) -> None:
    """Of a failure that schema 1 wrote; a list of known findings may still contain the number."""
    written = _EARLIER[kind]
    line = json.dumps({"kind": kind, "schema": 1, "opset": 0, "reason": "It does not run.", **written}).encode()
    record = decode_record(line, where="old:1")
    assert figures_of(record) == {}
    assert (record.schema, record.opset) == (2, None)
    for name, number in written.items():
        if _is_number(number):
            assert getattr(record, name) is None, name
            assert number in earlier_number(kind, name), name


def test_earlier_figures_stay() -> None:
    """A measured 0 or 1 of schema 1 is a figure, and a field that its version did not have has its meaning then."""
    judged = b'{"kind":"agreement","schema":1,"verdict":"ok","max_abs_error":0.0,"cosine":1.0,"not_finite":0}'
    assert figures_of(decode_record(judged, where="old:1")) == {
        "max_abs_error": 0.0,
        "max_bound_ratio": 0,
        "not_finite": 0,
        "max_relative_error": 0,
        "max_ulp_error": 0,
        "cosine": 1.0,
        "judged_rows": 0,
        "total_rows": 0,
    }
    timed = b'{"kind":"timing","schema":1,"median_seconds":1.0,"median_low":1.0,"median_high":1.0,"ratio":1.0}'
    record = decode_record(timed, where="old:2")
    assert isinstance(record, TimingRecord)
    assert (record.ratio, record.ratio_low, record.launches, record.confidence) == (1.0, 1, 1, 0.95)
    assert record.peak_memory_bytes is None


def test_the_repr_shows_what_is_known() -> None:
    """A failed arm: its name, outcome and reason, and no number."""
    shown = repr(TimingRecord(arm="b", outcome=Outcome.FAILED, reason="It does not run."))
    assert shown == "TimingRecord(failed, b, It does not run.)"


def test_a_missing_figure_is_not_used() -> None:
    """Code that needs a figure of a failure stops."""
    assert known(0.0) == 0.0
    with pytest.raises(ValueError, match="without figures"):
        known(TimingRecord(outcome=Outcome.FAILED).ratio)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
