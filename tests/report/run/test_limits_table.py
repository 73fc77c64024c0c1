"""The table of the sizes that files allow."""

import pytest

from sdpa_onnx.core.attention.axis_limits import AxisLimit
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord
from sdpa_onnx.report.run.limits_table import limit_in_words, limits_table
from sdpa_onnx.report.run.tables import all_tables

_SHORT = AxisLimit(size="x", largest=300, source="m.py:18: `if n <= 300:`", tested=(1, 300))


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (_SHORT, "holds for x <= 300 only, tested at 1 and 300 (m.py:18: `if n <= 300:`)"),
        (AxisLimit(size="b", step=4, source="s", tested=(4,)), "holds for b = 4*n only, tested at 4 (s)"),
        (
            AxisLimit(size="x", largest=9000, source="s", tested=(1, 128)),
            "holds for x <= 9000 only, tested at 1 and 128, not beyond (s)",
        ),
        (
            AxisLimit(size="x", largest=300, step=4, source="s", tested=(4, 300)),
            "holds for x <= 300, x = 4*n only, tested at 4 and 300 (s)",
        ),
        (AxisLimit(size="x", largest=5, source="s"), "holds for x <= 5 only (s)"),
    ],
)
def test_one_limit(limit: AxisLimit, words: str) -> None:
    """The condition, what was run, and whether the edge was."""
    assert limit_in_words(limit) == words


def test_rows() -> None:
    """Each limit of a target once, also if several runtimes ran it; without a limit there is no table."""
    records = [
        ExportRecord(target=target, runtime=name, limits=(_SHORT,)) for target in ("a", "b") for name in ("r", "s")
    ]
    table = limits_table(records)
    row = ("x <= 300", "1 and 300", "m.py:18: `if n <= 300:`")
    assert [(section.heading, section.rows) for section in table.sections] == [("a", (row,)), ("b", (row,))]
    assert "Limits of the axes" in [one.title for one in all_tables(records)]
    plain = [ExportRecord(target="a"), AgreementRecord(target="a")]
    assert "Limits of the axes" not in [one.title for one in all_tables(plain)]
