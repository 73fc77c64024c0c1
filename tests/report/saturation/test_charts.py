"""The charts of saturation: which cells are drawn, where, and that nothing is mixed."""

from xml.etree import ElementTree as ET

import pytest

from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.core.records.records import Outcome, Record
from sdpa_onnx.core.saturation.measures import MeasureName
from sdpa_onnx.report.run.charts import charts
from sdpa_onnx.report.saturation.points import PANELS, SaturationSeries, saturation_series
from sdpa_onnx.report.text.svg import to_svg
from tests.report.synthetic import quick_records
from tests.report.synthetic_saturation import LENGTHS, cell, flagged, module_cells, sweep, with_measure

OVER_HEAD_DIM, OVER_LENGTH = "saturation-over-d_k-sdpa", "saturation-over-length-sdpa"


@pytest.fixture(scope="module")
def drawings() -> dict[str, str]:
    """The charts of a sweep with the module check as SVG."""
    return {name: to_svg(chart) for name, chart in charts([*sweep(), *module_cells()]).items()}


def series_of(records: list[Record]) -> dict[str, SaturationSeries]:
    return {str(series.name): series for series in saturation_series(records)}


def test_one_chart_over_each_factor(drawings: dict[str, str]) -> None:
    """Over d_k and over length; the module check, of one width and length, has none."""
    assert list(drawings) == [OVER_HEAD_DIM, OVER_LENGTH]


@pytest.mark.parametrize("name", [OVER_HEAD_DIM, OVER_LENGTH])
def test_every_point_is_drawn(name: str, drawings: dict[str, str]) -> None:
    """Three values, two rules, four measures and a median: no cell lost, none of another line mixed in."""
    root = ET.fromstring(drawings[name])  # noqa: S314 - our own text
    marks = [node for node in root.iter() if node.get("aria-roledescription") == "point"]
    assert len(marks) == 3 * 2 * 5


@pytest.mark.parametrize(("name", "fixed"), [(OVER_HEAD_DIM, "length 1024"), (OVER_LENGTH, "d_k 64")])
def test_a_chart_stands_alone(name: str, fixed: str, drawings: dict[str, str]) -> None:
    """Sigma, the fixed factor, how much was measured, every quantity and every rule are in the picture."""
    text = " ".join(ET.fromstring(drawings[name]).itertext())  # noqa: S314 - our own text
    assert f"sigma^2 1, {fixed}, float32, 2048 rows from 16 draws of the keys at each point" in text
    for words in (*(panel.title for panel in PANELS), "none", "1/sqrt(d_k)", "exact prediction"):
        assert words in text
    assert 'fill="white"' in drawings[name]


def test_points_are_those_of_the_records() -> None:
    """Value, two standard errors and prediction of each cell, by rule and d_k."""
    series = series_of([*sweep()])[OVER_HEAD_DIM]
    assert series.rules == ("none", "1/sqrt(d_k)")
    by_place = {(record.scale_rule, record.head_dim, record.kv_seq_len): record for record in sweep()}
    for panel, points in zip(PANELS, series.filled, strict=True):
        assert len(points) == 6
        for point in points:
            measure = by_place[point.rule, point.x, max(LENGTHS)].measures[panel.measure.value]
            assert (point.y, point.predicted) == (measure.value, measure.predicted)
            assert point.high - point.low == pytest.approx(4 * (measure.standard_error or 0))
    assert [len(points) for points in series.hollow] == [0, 0, 0, 6]


def test_a_third_rule_has_its_own_look() -> None:
    """1/d_k is drawn with the two others."""
    records = sweep(*ScaleRule)
    assert series_of([*records])[OVER_LENGTH].rules == ("none", "1/sqrt(d_k)", "1/d_k")
    assert to_svg(charts([*records])[OVER_LENGTH]).count('aria-roledescription="point"') == 3 * 3 * 5


def test_the_usual_width_is_drawn_over_length() -> None:
    """Of equally long lines: d_k 64, or the nearest to it, and the longest row."""
    assert "d_k 64" in series_of([*sweep()])[OVER_LENGTH].fixed
    assert "d_k 16," in series_of([*sweep(head_dims=(4, 16, 512))])[OVER_LENGTH].fixed


def test_sigmas_are_not_mixed() -> None:
    """Another sigma of the same target is another line."""
    records = [*sweep(), *(cell(sigma=2.0, head_dim=width, kv_seq_len=1024) for width in (16, 64))]
    (series,) = (one for name, one in series_of([*records]).items() if name == OVER_HEAD_DIM)
    assert "sigma^2 1," in series.fixed
    assert len(series.filled[0]) == 6


def test_a_cell_that_disagrees_is_drawn_and_an_empty_one_is_not() -> None:
    """What is off its line must be seen; what was not measured has no point."""
    good, off, empty = (cell(head_dim=width) for width in (16, 64, 256))
    records = [good, flagged(off, 9.0), cell(head_dim=1024)]
    assert len(series_of([*records])[OVER_HEAD_DIM].filled[0]) == 3
    unmeasured = cell(head_dim=empty.head_dim, measures={}, outcome=Outcome.UNSUPPORTED)
    assert series_of([good, off, unmeasured]) == {}


def test_what_a_logarithm_cannot_show_is_said() -> None:
    """A median of zero is left out of the logarithmic panel and counted."""
    records = [cell(head_dim=width) for width in (16, 64, 256)]
    records[2] = with_measure(records[2], MeasureName.QUERY_GRADIENT_MEDIAN, value=0.0)
    assert series_of([*records])[OVER_HEAD_DIM].left_out == 1
    assert "1 point not drawn (zero or not finite)" in to_svg(charts([*records])[OVER_HEAD_DIM])


def test_no_line_without_three_values() -> None:
    """The module check alone, or two widths, make no chart; nor does a run without saturation."""
    assert charts([*module_cells()]) == {}
    assert charts([cell(head_dim=16), cell(head_dim=64)]) == {}
    assert series_of(quick_records()) == {}


def test_a_drawing_is_the_same_every_time(drawings: dict[str, str]) -> None:
    """The same records give the same bytes."""
    assert to_svg(charts([*sweep()])[OVER_LENGTH]) == drawings[OVER_LENGTH]
