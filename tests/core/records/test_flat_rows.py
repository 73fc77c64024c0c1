"""Records become rows of plain cells, and CSV that any reader understands."""

import csv
import io
from typing import get_args

import msgspec
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.flat_rows import CellType, csv_text, for_reading, table_of
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    MeasuredValue,
    Outcome,
    Record,
    SaturationRecord,
    Sizes,
    TimingRecord,
)
from tests.core.records.test_records import FULL

_KINDS: tuple[type[Record], ...] = get_args(Record)


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
def test_columns_do_not_depend_on_what_is_known(kind: type[Record]) -> None:
    """A table of failures has the columns of a table of results; every field is in it."""
    columns = table_of([kind()]).columns
    assert next(iter(columns)) == "kind"
    named = {field.name for field in msgspec.structs.fields(kind)}
    assert named - {"sizes", "spec", "measures"} <= set(columns)
    if kind is not SaturationRecord:
        full = FULL[str(kind.__struct_config__.tag)]
        assert table_of([full]).columns == columns


@pytest.mark.parametrize("record", FULL.values(), ids=FULL)
def test_every_cell_has_the_type_of_its_column(record: Record) -> None:
    """So that a data frame needs no guess."""
    table = table_of([record])
    (row,) = table.rows
    for (name, cell_type), cell in zip(table.columns.items(), row, strict=True):
        allowed = (int, float) if cell_type is CellType.REAL else (cell_type.value,)
        assert cell is None or type(cell) in allowed, name


def test_what_is_not_known_is_none() -> None:
    """A failed timing has no number in a column of figures."""
    table = table_of([TimingRecord(outcome=Outcome.FAILED)])
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert [cells[name] for name in ("ratio", "ratio_low", "median_seconds", "steady", "opset")] == [None] * 5


def test_a_table_to_read_has_results_first_and_no_empty_column() -> None:
    """Nothing that a record has is lost, and a figure of 0 or a truth value is not empty."""
    table = table_of([TimingRecord(arm="a", ratio=0.5, disturbed=0.0, steady=False), TimingRecord(arm="b")])
    shown = for_reading(table)
    assert list(shown.columns)[:4] == ["kind", "outcome", "arm", "ratio"]
    assert {"disturbed", "steady"} <= set(shown.columns)
    assert len(shown.columns) < len(table.columns) / 2
    whole = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    kept = [dict(zip(shown.columns, row, strict=True)) for row in shown.rows]
    for before, after in zip(whole, kept, strict=True):
        assert {name: cell for name, cell in before.items() if cell not in (None, "")}.items() <= after.items()
    assert for_reading(table_of([])).columns == {}


def test_parts_have_columns() -> None:
    """Sizes, spec, lists and maps."""
    record = AgreementRecord(
        sizes=Sizes(q_seq_len=3), spec=AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8), ran={"Attention": 1}
    )
    table = table_of([record])
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert (cells["q_seq_len"], cells["kv_seq_len"]) == (3, None)
    assert (cells["spec_kv_num_heads"], cells["spec_scale"], cells["spec_is_causal"]) == (2, "1/sqrt(d_k)", False)
    assert (cells["ran"], cells["fused"], cells["warnings"]) == ('{"Attention":1}', "", "")


def test_measures_of_saturation() -> None:
    """Each becomes four columns, also where another record lacks it."""
    measured = MeasuredValue(value=0.5, predicted=0.4, z=1.5)
    table = table_of([SaturationRecord(), SaturationRecord(measures={"entropy": measured})])
    names = ("entropy", "entropy_predicted", "entropy_standard_error", "entropy_z")
    places = [list(table.columns).index(name) for name in names]
    assert [table.columns[name] for name in names] == [CellType.REAL] * 4
    assert [[row[place] for place in places] for row in table.rows] == [[None] * 4, [0.5, 0.4, None, 1.5]]


def test_csv_is_read_back() -> None:
    """By a reader of CSV: separators, quotes and line ends inside of a text, and every digit of a number."""
    text = 'a,"b"\r\n=1+1'
    record = TimingRecord(arm=text, median_seconds=0.1 + 0.2, steady=False)
    (row,) = csv.DictReader(io.StringIO(csv_text([record]), newline=""))
    assert row["arm"] == text
    assert float(row["median_seconds"]) == 0.1 + 0.2
    assert (row["steady"], row["ratio"]) == ("false", "")


def test_no_records() -> None:
    """An empty table."""
    table = table_of([])
    assert (table.columns, table.rows) == ({}, ())
