"""The first lines on saturation: the main claims, the module, the largest deviation, what is not ok."""

import pytest

from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.core.saturation.measures import MeasureName
from sdpa_onnx.report.saturation.findings import _LINES, deviation_line, saturation_findings
from tests.conftest import GoldenCheck
from tests.report.synthetic import check, quick_records, tell
from tests.report.synthetic_saturation import MODULE, cell, flagged, module_cells, sweep, with_measure


def test_whole_text(golden: GoldenCheck) -> None:
    """All lines on a sweep and the module check."""
    golden("findings_saturation.txt", "\n".join(saturation_findings([*sweep(), *module_cells()])) + "\n")


def test_lines_in_their_order() -> None:
    """What scaling buys first, then phases, mean square, typical and dead rows, the module, the deviation."""
    lines = saturation_findings([*sweep(), *module_cells()])
    starts = ("Saturation: Independent", "Scale 1/sqrt(d_k)", "In the mean square", "In the median", MODULE, "Of 340")
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 6
    for words in ("sigma^2 = 1, float32", "What scaling buys", "effective keys", "of rows with a weight above 0.99"):
        assert words in lines[0]
    assert "Scale none: beta / beta_c" in lines[1]
    assert "frozen" in lines[1]
    assert '"extremely small" (section 3.2.1)' in lines[2]
    assert "Dead rows" in lines[3]


def test_no_saturation_no_line() -> None:
    """A run without such cells has no text on them."""
    assert saturation_findings([]) == []
    assert not [line for line in tell(quick_records()) if "aturation" in line or "|z|" in line]


def test_module_alone() -> None:
    """Its own claims are printed, under its own sigma, in no line of bare attention."""
    lines = saturation_findings(module_cells())
    assert lines[0].startswith(f"Saturation: Query and key of {MODULE}, sigma^2 = 0.5, float32: d_k 64, length 512.")
    assert not [line for line in lines if "Independent" in line]


def test_module_beside_a_sweep() -> None:
    """One line with its sigma and both spreads."""
    (line,) = [line for line in saturation_findings([*sweep(), *module_cells()]) if line.startswith(MODULE)]
    assert line.startswith(f"{MODULE} as initialised (sigma^2 0.5, d_k 64, length 512): under scale none the logits")
    assert "predicted 4.00" in line
    assert "predicted 0.500" in line


def test_the_first_line_counts_what_is_ok() -> None:
    """Saturation alone is no check against the oracle, and the first line states it."""
    assert tell([*sweep()])[0] == (
        "All 18 saturation cells match theory. No output was checked against the float64 oracle."
    )


def test_flagged() -> None:
    """A |z| above 4 is counted in the first line, has its reason, and leads the lines on saturation."""
    records = sweep()
    records[0] = flagged(records[0], -5.2)
    lines = tell([check(), *records])
    assert lines[0].endswith("Not ok: 1 saturation cell disagrees.")
    assert lines[1] == (
        "1 saturation cell disagrees (sdpa, ort-cpu decomposed 18, sigma^2 1, float32, scale none, d_k 16, length 64): "
        "entropy is 0.9, predicted 0.7 (z = -5.2, allowed 4)."
    )
    first, left_out = saturation_findings(records)[:2]
    assert first.endswith(
        "the largest |z| is 5.2 (entropy, sdpa, sigma^2 1, float32, scale none, d_k 16, length 64): "
        "over the limit of 4 in 1 cell (1 counted as disagreeing)."
    )
    assert left_out.startswith("1 of 18 cells are incomplete or outside their bound or prediction")


@pytest.mark.parametrize(
    ("z", "verdict"), [(4.0, "within the limit of 4."), (-4.0001, "over the limit of 4 in 1 cell")]
)
def test_the_limit_from_both_sides(z: float, verdict: str) -> None:
    """At 4 is within, beyond is over, whatever the sign."""
    line = deviation_line([with_measure(cell(), MeasureName.JACOBIAN_RMS, z=z), cell(ScaleRule.INVERSE_SQRT)])
    assert line.startswith(
        "Of 34 measures compared with an exact prediction in 2 cells, the largest |z| is 4.0 (jacobian_rms"
    )
    assert verdict in line


def test_one_draw_beyond_is_told_though_the_cell_is_ok() -> None:
    """The workflow repeats with fresh draws before a cell disagrees; the line still has the value in the record."""
    line = deviation_line([with_measure(cell(), MeasureName.JACOBIAN_RMS, z=4.4)])
    assert line.endswith("over the limit of 4 in 1 cell (0 counted as disagreeing).")


def test_nothing_compared() -> None:
    """A cell that a runtime does not support has no deviation and makes no claim."""
    records = [cell(measures={}, outcome=Outcome.UNSUPPORTED, reason="no float16")]
    assert deviation_line(records) == ""
    where = "sdpa, ort-cpu decomposed 18, sigma^2 1, float32, scale none, d_k 64, length 256"
    first, why = tell([*records])
    assert first == ("No output was checked against the float64 oracle. Not ok: 1 saturation cell unsupported.")
    assert why == f"1 saturation cell unsupported ({where}): no float16."


def test_one_rule_alone() -> None:
    """Without a pair there is nothing to compare: phase and deviation only."""
    lines = saturation_findings(sweep(ScaleRule.INVERSE_SQRT))
    assert [line.split(":")[0] for line in lines[:1]] == ["Saturation"]
    assert "Scale 1/sqrt(d_k): beta / beta_c" in lines[0]
    assert len(lines) == 2


def test_order_of_the_records_does_not_matter_for_the_inputs() -> None:
    """Bare attention is the subject whether it is first or last, and however few cells it has."""
    assert saturation_findings([*module_cells(), cell()])[0].startswith("Saturation: Independent components")


def test_a_whole_run_counts_them_in_its_first_line() -> None:
    """Saturation adds a sentence to the verdict and changes no other line."""
    (before, *others), (now, *same) = tell(quick_records()), tell([*quick_records(), *sweep()])
    assert now == f"{before} All 18 saturation cells match theory."
    assert same == others


def test_every_line_finds_its_claims() -> None:
    """The beginnings by which claims are chosen are those that the core writes."""
    text = "\n".join(saturation_findings(sweep()))
    assert [words in text for line in _LINES for words in line] == [True] * 5
