"""NaN and infinity in a line of records.jsonl: the line and the field are named."""

import pytest

from sdpa_onnx.core.records.not_finite import not_finite_number
from sdpa_onnx.core.records.records import decode_record
from sdpa_onnx.errors import RecordFormatError

_LINES = {
    "nan": (b'{"kind": "agreement", "max_abs_error": NaN}', "max_abs_error is NaN"),
    "infinity": (b'{"kind": "agreement", "max_bound_ratio": Infinity}', "max_bound_ratio is Infinity"),
    "minus-infinity": (b'{"kind": "timing", "median_seconds": -Infinity}', "median_seconds is -Infinity"),
    "too-large": (b'{"kind": "timing", "ratio": 1e999}', "ratio is Infinity"),
    "in-a-measure": (
        b'{"kind": "saturation", "measures": {"beta": {"value": NaN}}}',
        "measures.beta.value is NaN",
    ),
    "in-a-list": (b'{"kind": "agreement", "evidence": [0.5, NaN]}', "evidence[1] is NaN"),
    "for-a-whole-number": (b'{"kind": "agreement", "seed": NaN}', "seed is NaN"),
}


@pytest.mark.parametrize(("line", "words"), _LINES.values(), ids=_LINES)
def test_field_is_named(line: bytes, words: str) -> None:
    """A number that JSON cannot hold is reported with file, line and field, and with what to write instead."""
    with pytest.raises(RecordFormatError) as raised:
        decode_record(line, where="run/records.jsonl:7")
    assert str(raised.value) == (
        f"run/records.jsonl:7: {words}. Numbers are finite; write null for a figure that is not known."
    )


@pytest.mark.parametrize(
    "line", [b'{"seed": 1', b"nan", b"\xff", b'{"reason": "NaN"}', b"[" * 100_000, b'{"max_abs_error": nan}']
)
def test_other_faults(line: bytes) -> None:
    """Text about NaN, and lines that are broken in another way, are not reported as a number."""
    assert not_finite_number(line) == ""
