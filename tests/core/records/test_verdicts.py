"""Outcomes: a time-out is a failure of its own name."""

import pytest

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gates import compare_paired
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Verdict, outcome_of_error
from sdpa_onnx.errors import NoAnswerError, SessionError
from sdpa_onnx.report.text.tally import outcome_of


@pytest.mark.parametrize("outcome", Outcome)
def test_a_time_out_counts_as_failed(outcome: Outcome) -> None:
    """And every other outcome as itself."""
    expected = Outcome.FAILED if outcome is Outcome.TIMED_OUT else outcome
    assert outcome.counted is expected
    assert outcome.is_failure is (expected is Outcome.FAILED)
    assert outcome_of(AgreementRecord(outcome=outcome, verdict=Verdict.OK)) is expected


def test_the_error_decides_and_not_its_text() -> None:
    """The same sentence of another error is a failure."""
    sentence = "ort-cpu gave no answer in 20 s."
    assert outcome_of_error(NoAnswerError(sentence)) is Outcome.TIMED_OUT
    assert outcome_of_error(SessionError(sentence)) is Outcome.FAILED


def test_a_time_out_is_no_change_from_a_failure() -> None:
    """A stored run of an earlier version has no other word for it."""
    before, now = (
        AgreementRecord(case="m", outcome=one, reason="It gave no answer.")
        for one in (Outcome.FAILED, Outcome.TIMED_OUT)
    )
    (row,) = compare_paired([before], [now], [], GateLimits())
    assert (row.fails, row.base, row.head) == (False, "failed", "failed")
