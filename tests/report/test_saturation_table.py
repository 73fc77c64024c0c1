"""The saturation table: one section an input and rule, the outcome where a figure is missing or wrong."""

from sdpa_onnx.core.records import Measure, Outcome, SaturationRecord
from sdpa_onnx.core.saturation import MeasureName
from sdpa_onnx.report.layout import table_lines
from sdpa_onnx.report.saturation_table import saturation_table


def record(
    rule: str, *, z: float = 1.2, outcome: Outcome = Outcome.OK, sigma: float = 1.0, measured: bool = True
) -> SaturationRecord:
    """A cell whose measures are 0.5 each."""
    measures = {name.value: Measure(value=0.5, predicted=0.5, standard_error=0.1, z=z) for name in MeasureName}
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
    row = ("64", "256", *["0.500"] * 3, "50 %", *["0.500"] * 4, "50 %", "50 %", "+1.2")
    assert table.sections[0].rows == (row, row)


def test_the_last_column_tells_what_is_wrong() -> None:
    """A z beyond 4 speaks for itself; a fault of the weights and a missing measurement are named."""
    table = saturation_table(
        [
            record("none", z=-9.0, outcome=Outcome.DISAGREES),
            record("none", z=-1.0, outcome=Outcome.DISAGREES),
            record("none", measured=False, outcome=Outcome.UNSUPPORTED),
        ]
    )
    assert [row[-1] for row in table.sections[0].rows] == ["-9.0", "-1.0 disagrees", "unsupported"]


def test_it_fits_a_wide_terminal() -> None:
    """120 columns hold every line."""
    assert max(len(line.text) for line in table_lines(saturation_table([record("none")]), 120)) <= 120
