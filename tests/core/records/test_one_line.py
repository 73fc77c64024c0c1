"""The repr of a record is one short line, whatever its texts hold; equality and JSON do not depend on it."""

from typing import get_args

import msgspec
import pytest

from sdpa_onnx.core.records.record_base import BaseRecord
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    GateRecord,
    Outcome,
    Record,
    Subject,
    TimingRecord,
    Verdict,
    decode_record,
    encode_record,
)
from tests.core.records.test_records import FULL

_MOST = 160
_KINDS: tuple[type[Record], ...] = get_args(Record)


@pytest.mark.parametrize("record", FULL.values(), ids=FULL)
def test_a_full_record_is_one_line(record: Record) -> None:
    """Every kind names itself and stays short."""
    shown = repr(record)
    assert shown.startswith(f"{type(record).__name__}(")
    assert "\n" not in shown
    assert len(shown) <= _MOST


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
def test_hostile_texts_stay_on_the_line(kind: type[Record]) -> None:
    """Line ends, control characters and endless names of a file cannot break or flood a terminal."""
    texts = {
        field.name: "a\n\x1b[2J\u202e" + "x" * 10_000
        for field in msgspec.structs.fields(kind)
        if field.type is str and field.name != "kind"
    }
    shown = repr(kind(outcome=Outcome.FAILED, **texts))
    assert shown.isprintable()
    assert len(shown) <= _MOST


def test_agreement() -> None:
    """The verdict, where it ran, the case, the inputs, and the error over its bound."""
    record = AgreementRecord(
        runtime="ort-cpu", case="b2_q13", inputs="spread 1", verdict=Verdict.OK, max_bound_ratio=0.1718
    )
    assert repr(record) == "AgreementRecord(ok, ort-cpu, b2_q13, spread 1, 0.172 of bound)"
    output = msgspec.structs.replace(record, subject=Subject.OUTPUT, site="Y")
    assert repr(output) == "AgreementRecord(ok, ort-cpu, b2_q13, Y, spread 1, 0.172 of limit)"


def test_timing() -> None:
    """The ratio of an arm with its interval; the baseline has none beside itself, a failed arm no figure."""
    arm = TimingRecord(
        arm="blocked", baseline="torch", median_seconds=0.0185, ratio=0.5, ratio_low=0.49, ratio_high=0.51
    )
    assert repr(arm) == "TimingRecord(ok, blocked, 0.0185 s, 0.5 x torch [0.49, 0.51])"
    baseline = TimingRecord(arm="torch", baseline="torch", median_seconds=0.037, ratio=1.0)
    assert repr(baseline) == "TimingRecord(ok, torch, 0.037 s)"
    failed = TimingRecord(arm="torch", baseline="torch", outcome=Outcome.FAILED, reason="It does not run.")
    assert repr(failed) == "TimingRecord(failed, torch, It does not run.)"


def test_equality_and_json_use_every_field() -> None:
    """Two records whose reprs are the same still differ, and JSON holds all of each."""
    one, other = TimingRecord(arm="a", calls=1), TimingRecord(arm="a", calls=2)
    assert repr(one) == repr(other)
    assert one != other
    assert len({one.calls, other.calls}) == 2
    assert decode_record(encode_record(other), where="x:1") == other


def test_every_field_can_still_be_printed() -> None:
    """`rich.print` reads `__rich_repr__`, which lists what is known."""
    listed = dict(GateRecord(arm="a").__rich_repr__())
    assert listed == {"arm": "a"}
    assert issubclass(GateRecord, BaseRecord)
