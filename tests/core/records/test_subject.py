"""What a judgement is about, in records of this version and of earlier ones."""

import pytest

from sdpa_onnx.core.compare.gate_match import match_records
from sdpa_onnx.core.records.gate_records import GateRecord
from sdpa_onnx.core.records.records import AgreementRecord, LocatedRecord, Subject, decode_record, encode_record
from sdpa_onnx.core.records.subject import earlier_site, from_earlier_site


@pytest.mark.parametrize("subject", Subject)
def test_earlier_names_are_read_back(subject: Subject) -> None:
    """Whatever the name holds."""
    for name in ("Y", "a:b", ""):
        assert from_earlier_site(earlier_site(subject, name)) == (subject, name)


@pytest.mark.parametrize("kind", ["agreement", "located", "gate"])
@pytest.mark.parametrize(
    ("site", "subject", "name"),
    [
        ("sdpa", Subject.ATTENTION, "sdpa"),
        ("", Subject.ATTENTION, ""),
        ("end:Y", Subject.OUTPUT, "Y"),
        ("read:block/attention", Subject.READING, "block/attention"),
    ],
)
def test_earlier_records_get_their_subject(kind: str, site: str, subject: Subject, name: str) -> None:
    """A line without the field was written when the name had a prefix."""
    record = decode_record(f'{{"kind":"{kind}","site":"{site}"}}'.encode(), where="old:1")
    assert isinstance(record, AgreementRecord | LocatedRecord | GateRecord)
    assert (record.subject, record.site) == (subject, name)


def test_a_name_with_the_prefix_stays_a_name() -> None:
    """In a record that has a subject nothing is cut off."""
    record = AgreementRecord(site="end:Y")
    assert decode_record(encode_record(record), where="new:1") == record


def test_attention_and_output_of_one_name_are_matched_apart() -> None:
    """Each with its own kind, whatever the order."""
    attention, output = (AgreementRecord(subject=one, site="Y") for one in (Subject.ATTENTION, Subject.OUTPUT))
    found = match_records([attention, output], [output, attention])
    assert [match.pair for match in found] == [(output, output), (attention, attention)]
