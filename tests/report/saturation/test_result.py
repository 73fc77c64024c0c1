"""The first screen of `saturation`: the verdict, what the scale changes, one table, at most 25 lines."""

import pytest

from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.core.records.records import Outcome, SaturationRecord
from sdpa_onnx.report.saturation.result import saturation_result
from sdpa_onnx.report.text.result_text import result_lines
from tests.report.synthetic_saturation import cell, module_cells

_RULES = (ScaleRule.NONE, ScaleRule.INVERSE_SQRT)


def _cells() -> list[SaturationRecord]:
    """As many cells as the command measures by default."""
    sizes = [(head_dim, length) for head_dim in (16, 64, 256, 1024) for length in (64, 256, 1024, 4096)]
    return [*(cell(rule, head_dim=width, kv_seq_len=keys) for rule in _RULES for width, keys in sizes), *module_cells()]


def _screen(records: list[SaturationRecord], width: int = 80) -> list[str]:
    lines = result_lines(saturation_result(records), width, with_details=True, with_tables=False)
    return [line.text for line in lines]


def test_the_usual_screen_has_25_lines() -> None:
    """The verdict comes first, and no line is wider than the terminal."""
    lines = _screen(_cells())
    assert len(lines) <= 25
    assert lines[0].startswith("All 34 cells match their exact prediction (largest |z| ")
    assert lines[1].startswith("- What scaling buys")
    assert lines[-1] == "- --verbose prints every length, all measures, and the claims of the paper."


@pytest.mark.parametrize("width", [60, 80])
def test_lines_fit_the_terminal(width: int) -> None:
    """The table and the sentences are broken."""
    assert max(map(len, _screen(_cells(), width))) <= width


def test_only_the_greatest_length_is_shown() -> None:
    """One row for each width and rule."""
    lines = _screen(_cells())
    assert any("With 4096 keys" in line for line in lines)
    assert sum(line.split()[:1] == ["64"] for line in lines) == len(_RULES)


def test_a_failed_cell_is_said_first() -> None:
    """The verdict counts it, and its finding follows."""
    failed = cell(head_dim=32, outcome=Outcome.FAILED, reason="no kernel", measures={})
    lines = _screen([*_cells(), failed])
    assert lines[0] == "1 of 35 cells does not match the prediction or failed."
    assert lines[1] == "- No kernel: failed on ort-cpu."


def test_nothing_measured() -> None:
    """Without cells there is no table."""
    assert _screen([]) == ["Nothing was measured."]
