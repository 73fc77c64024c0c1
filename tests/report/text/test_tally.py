"""What is not ok is listed once per reason, whatever the numbers in it."""

import math

from sdpa_onnx.core.records.records import LocatedRecord, Outcome, PlantedRecord, Verdict
from sdpa_onnx.report.text.tally import not_ok
from tests.report.synthetic import check

_WRONG = {"outcome": Outcome.DISAGREES, "verdict": Verdict.WRONG}


def test_reasons_that_differ_in_numbers_are_one() -> None:
    """Cases of one fault are one group with the reason of the worst."""
    records = [
        check(**_WRONG, max_bound_ratio=ratio, diagnosis=f"The scale is off by {off} % at (0, {row}).")
        for ratio, off, row in ((3.0, "1.9", 4), (50.0, "2e-05", 17), (7.5, "1.88", 0))
    ]
    (group,) = not_ok(records)
    assert (group.outcome, group.noun, group.records) == (Outcome.DISAGREES, "check", tuple(records))
    assert group.reason == "The scale is off by 2e-05 % at (0, 17)."


def test_an_output_that_is_no_number_is_the_worst() -> None:
    """NaN represents its group before any finite error."""
    finite = check(**_WRONG, max_bound_ratio=1e9, diagnosis="Row 1 is off.")
    broken = check(**_WRONG, max_bound_ratio=math.nan, not_finite=1, diagnosis="Row 2 is off.")
    (group,) = not_ok([finite, broken])
    assert group.reason == "Row 2 is off."


def test_reasons_in_other_words_stay_apart() -> None:
    """A different reason, outcome or kind of record is a different group, the largest first."""
    one = check(**_WRONG, max_bound_ratio=2.0, diagnosis="The scale is off by 1 %.")
    other = check(**_WRONG, max_bound_ratio=9.0, diagnosis="Row 1 is off.")
    failed = check(outcome=Outcome.FAILED, verdict=None, reason="Row 1 is off.")
    groups = not_ok([failed, other, one, one])
    assert [(group.outcome, len(group.records)) for group in groups] == [
        (Outcome.DISAGREES, 2),
        (Outcome.DISAGREES, 1),
        (Outcome.FAILED, 1),
    ]


def test_planted_and_located_records_are_no_judgements() -> None:
    """A planted fault that was missed and a node that was found have tables of their own."""
    assert not_ok([PlantedRecord(outcome=Outcome.FAILED), LocatedRecord(outcome=Outcome.DISAGREES)]) == []
