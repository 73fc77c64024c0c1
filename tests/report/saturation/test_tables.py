"""The saturation table: one section an input and rule, the outcome where a figure is missing or wrong."""

from collections.abc import Callable

import msgspec
import pytest

from sdpa_onnx.core.records.records import MeasuredValue, Outcome, SaturationRecord
from sdpa_onnx.core.saturation.measures import MeasureName
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.saturation.tables import prediction_table, saturation_table
from sdpa_onnx.report.text.layout import table_lines
from sdpa_onnx.report.text.table import Table
from tests.report.synthetic_saturation import MODULE, cell, flagged, module_cells, sweep, with_measure

RULES = ("none", "1/sqrt(d_k)")


def record(
    rule: str, *, z: float = 1.2, outcome: Outcome = Outcome.OK, sigma: float = 1.0, measured: bool = True
) -> SaturationRecord:
    """A cell whose measures are 0.5 each."""
    measures = {name.value: MeasuredValue(value=0.5, predicted=0.5, standard_error=0.1, z=z) for name in MeasureName}
    return SaturationRecord(
        target="sdpa",
        outcome=outcome,
        scale_rule=rule,
        head_dim=64,
        kv_seq_len=256,
        sigma=sigma,
        dtype="float32",
        measures=measures if measured else {},
    )


def test_rows_and_sections() -> None:
    """Rules and sigmas are kept apart."""
    table = saturation_table([record("none"), record("1/sqrt(d_k)"), record("none", sigma=0.5**0.5), record("none")])
    assert [section.heading for section in table.sections] == [
        "sdpa, sigma^2 1, float32, scale none",
        "sdpa, sigma^2 1, float32, scale 1/sqrt(d_k)",
        "sdpa, sigma^2 0.5, float32, scale none",
    ]
    row = ("64", "256", *["0.500"] * 2, "50 %", *["0.500"] * 4, "50 %", "50 %", "+1.2")
    assert table.sections[0].rows == (row, row)


def test_the_last_column_tells_what_is_wrong() -> None:
    """A z beyond 4 and a fault of the weights are flagged; a missing measurement is named."""
    table = saturation_table(
        [
            record("none", z=-9.0, outcome=Outcome.DISAGREES),
            record("none", z=-1.0, outcome=Outcome.DISAGREES),
            record("none", z=4.1),
            record("none", z=-0.01),
            record("none", measured=False, outcome=Outcome.UNSUPPORTED),
        ]
    )
    assert [row[-1] for row in table.sections[0].rows] == ["-9.0!", "-1.0!", "+4.1!", "+0.0", "unsupported"]


def test_measured_beside_predicted() -> None:
    """A section a rule and length, three columns a measure, z flagged beyond 4; unmeasured cells are left out."""
    table = prediction_table([record("none", z=4.0), record("none", z=-4.1), record("1/sqrt(d_k)", measured=False)])
    assert [section.heading for section in table.sections] == ["sdpa, sigma^2 1, float32, scale none, length 256"]
    first, second = table.sections[0].rows
    assert first == ("64", "0.500", "0.500", "+4.0", "50 %", "50 %", "+4.0", *["0.500", "0.500", "+4.0"] * 2)
    assert {second[index] for index in (3, 6, 9, 12)} == {"-4.1!"}


def test_no_prediction_is_a_dash() -> None:
    """A measure that was not compared has no z."""
    one = record("none")
    bare = {name: MeasuredValue(value=measure.value) for name, measure in one.measures.items()}
    table = prediction_table([msgspec.structs.replace(one, measures=bare)])
    assert table.sections[0].rows[0][:4] == ("64", "0.500", "-", "-")


def test_the_module_check_has_its_own_heading() -> None:
    """Its sigma is that of its weights, and it is not mixed with bare attention."""
    headings = [section.heading for section in saturation_table([*sweep(), *module_cells()]).sections]
    assert headings[2:] == [f"{MODULE} as initialised, sigma^2 0.5, float32, scale {rule}" for rule in RULES]
    headings = [section.heading for section in prediction_table([*sweep(), *module_cells()]).sections]
    assert len(headings) == 2 * 3 + 2


@pytest.mark.parametrize(("value", "text"), [(0.0, "0 %"), (9e-5, "<.01 %"), (1e-4, "0.01 %"), (0.5, "50 %")])
def test_a_share_that_is_as_good_as_none(value: float, text: str) -> None:
    """An exact 1e-11 is not given digits."""
    one = with_measure(cell(), MeasureName.SATURATED_ROWS, value=value, predicted=value)
    assert prediction_table([one]).sections[0].rows[0][4:6] == (text, text)


@pytest.mark.parametrize("value", [1e-12, 2.1e-5, 0.00127, 0.06, 1.34])
def test_small_gradients_stay_short(value: float) -> None:
    """Six characters, or the table outgrows 80 columns."""
    one = with_measure(cell(), MeasureName.QUERY_GRADIENT_MEDIAN, value=value)
    text = saturation_table([one]).sections[0].rows[0][7]
    assert len(text) <= 6
    assert float(text) == pytest.approx(value, rel=0.06)


def test_both_are_in_the_report_and_absent_without_cells() -> None:
    """`all_tables` shows them where there is a cell."""
    titles = [table.title for table in all_tables([*sweep()])]
    assert titles == ["Saturation of the softmax", "Saturation, measured and predicted"]
    assert all_tables([]) == []


@pytest.mark.parametrize("build", [saturation_table, prediction_table])
def test_it_fits_80_columns(build: Callable[[list[SaturationRecord]], Table]) -> None:
    """The widest cells of the plan: d_k 4 to 4096, a flag in every section."""
    records = [*sweep(head_dims=(4, 64, 4096)), *module_cells(), flagged(cell(head_dim=1024, kv_seq_len=4096), -5.2)]
    assert max(len(line.text) for line in table_lines(build(records), 80)) <= 80
