"""Cells of the tables that a reader could misread."""

import pytest

from sdpa_onnx.core.records.records import ExportRecord, Outcome, Verdict
from sdpa_onnx.report.run.check_tables import agreement_table, export_table
from sdpa_onnx.report.text.labels import usual_factors
from tests.report.synthetic import check

_WRONG = {"outcome": Outcome.DISAGREES, "verdict": Verdict.WRONG}


@pytest.mark.parametrize(
    ("not_finite", "cell"),
    [((0, 0), "2.0e-03"), ((7, 0), "not finite"), ((0, 7), "not finite")],
)
def test_nan_has_no_absolute_error(not_finite: tuple[int, int], cell: str) -> None:
    """The largest error of finite elements is not printed if other elements are not finite."""
    records = [
        check(max_abs_error=error, not_finite=n, **_WRONG) for error, n in zip((2e-3, 0.0), not_finite, strict=True)
    ]
    table = agreement_table(records, usual_factors(records))
    place = [column.head for column in table.columns].index("abs. error")
    assert [row[place] for section in table.sections for row in section.rows] == [cell]


@pytest.mark.parametrize(("number", "word"), [(1, "1 other"), (2, "2 others")])
def test_other_operators_are_counted(number: int, word: str) -> None:
    """One operator more than are listed is one other."""
    nodes = {"MatMul": 9, "Add": 8, "Mul": 7, "Div": 6, "Softmax": number}
    (section,) = export_table([ExportRecord(target="sdpa", form="decomposed", opset=18, nodes=nodes)]).sections
    assert f"9 MatMul, 8 Add, 7 Mul, 6 Div, {word}" in section.rows[0]
