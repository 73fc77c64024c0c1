"""The charts: what is drawn, from which records, and that it is sound SVG."""

import math
from xml.etree import ElementTree as ET

import msgspec
import pytest

from sdpa_onnx.core.records.records import Outcome, Record, TimingRecord
from sdpa_onnx.report.run.charts import charts
from sdpa_onnx.report.text.chart_style import looks
from sdpa_onnx.report.text.svg import to_svg
from sdpa_onnx.report.text.ticks import ticks
from sdpa_onnx.report.timing.chart_points import chart_series, series_names
from sdpa_onnx.report.timing.ratio_points import ratio_picture
from tests.report.synthetic import case_of, check, comparison, quick_records, sizes_of

RATIOS = "ratios"
NAMES = ["time-over-length-sdpa", "time-over-d_k-sdpa", "error-over-d_k-sdpa"]


@pytest.fixture(scope="module")
def drawings() -> dict[str, str]:
    """The charts of the quick suite as SVG."""
    return {name: to_svg(chart) for name, chart in charts(quick_records()).items()}


def test_quick_suite_has_its_charts(drawings: dict[str, str]) -> None:
    """All ratios first, then the factors that the suite varies, and no others."""
    assert list(drawings) == [RATIOS, *NAMES]


def test_every_ratio_is_drawn(drawings: dict[str, str]) -> None:
    """Two arms other than the baseline in each case."""
    cases = {record.case for record in quick_records() if isinstance(record, TimingRecord)}
    root = ET.fromstring(drawings[RATIOS])  # noqa: S314 - our own text
    marks = [node for node in root.iter() if node.get("aria-roledescription") == "point"]
    assert len(marks) == 2 * len(cases)


def test_causal_ratios_have_a_panel_of_their_own() -> None:
    """Of a module too, whose timings have no spec but whose checks do."""
    causal = case_of(head_dim=64, causal=True)
    records: list[Record] = [
        *comparison(seq_len=512),
        *comparison(seq_len=512, causal=True),
        *comparison("decoder-self", seq_len=512),
        check(target="decoder-self", case=causal.case_id, spec=causal.spec),
    ]
    picture = ratio_picture(records)
    assert picture is not None
    assert [(panel.title, [case.label for case in panel.cases]) for panel in picture.panels] == [
        ("not causal", ["not causal"]),
        ("causal", ["causal", "causal decoder self-attention"]),
    ]


def test_the_largest_effects_are_kept() -> None:
    """A picture has room for 30 cases in a panel; the number of the others is stated."""
    records: list[Record] = [record for length in range(32, 72) for record in comparison(seq_len=length)]
    picture = ratio_picture(records)
    assert picture is not None
    (panel,) = picture.panels
    assert (len(panel.cases), panel.left_out) == (30, 10)


@pytest.mark.parametrize(
    ("name", "points"), [(NAMES[0], 6 * 3 + 6 * 2), (NAMES[1], 5 * 3 + 5 * 2), (NAMES[2], 2 * 5 * 4)]
)
def test_every_point_is_drawn(name: str, points: int, drawings: dict[str, str]) -> None:
    """As many marks as measurements: no series lost, no case of another slice mixed in."""
    root = ET.fromstring(drawings[name])  # noqa: S314 - our own text
    marks = [node for node in root.iter() if node.get("aria-roledescription") == "point"]
    assert len(marks) == points


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_stands_alone(name: str, drawings: dict[str, str]) -> None:
    """Arms, fixed factors, axis titles and a white background are in every picture."""
    text = " ".join(ET.fromstring(drawings[name]).itertext())  # noqa: S314 - our own text
    for words in ("ort-cpu attention 23", "ort-cpu decomposed 18", "torch", "batch 1", "8 heads, float32"):
        assert words in text
    assert 'fill="#ffffff"' in drawings[name]


def test_axes_have_units(drawings: dict[str, str]) -> None:
    """A time has its unit, an error its bound."""
    assert "time of a call (ms)" in drawings[NAMES[0]]
    assert "length (tokens)" in drawings[NAMES[0]]
    assert "largest error / proven bound" in drawings[NAMES[2]]


def test_a_drawing_is_the_same_every_time(drawings: dict[str, str]) -> None:
    """Vega's running numbers of clip paths do not reach the file."""
    assert to_svg(charts(quick_records())[NAMES[0]]) == drawings[NAMES[0]]


@pytest.mark.parametrize("ends", [(0.0, math.inf), (0.0, 0.0)])
def test_an_interval_without_a_logarithm_is_not_drawn(ends: tuple[float, float]) -> None:
    """A point whose interval is missing or endless is a point without a bar."""
    fields = dict(zip(("ratio_low", "ratio_high"), ends, strict=True))
    records = [
        msgspec.structs.replace(record, **fields) for length in (32, 64, 128) for record in comparison(seq_len=length)
    ]
    (series,) = chart_series([*records])
    assert {point.low == point.y == point.high for point in series.relative} == {True}
    assert "NaN" not in to_svg(charts([*records])[NAMES[0]])


@pytest.mark.parametrize("lengths", [(), (32,), (32, 64)])
def test_no_line_without_three_values(lengths: tuple[int, ...]) -> None:
    """Two points make no line; each ratio is a dot."""
    records: list[Record] = [record for length in lengths for record in comparison(seq_len=length)]
    assert list(charts(records)) == ([RATIOS] if lengths else [])


def test_failed_timings_are_not_drawn() -> None:
    """A cell that failed has no point, and a line of failures no chart."""
    records = [record for length in (32, 64, 128) for record in comparison(seq_len=length)]
    failed = [msgspec.structs.replace(record, outcome=Outcome.FAILED) for record in records]
    assert charts([*failed]) == {}


def test_each_target_has_its_chart() -> None:
    """Modules are not mixed with bare attention, whatever their name."""
    records = [
        record
        for target in ("sdpa", "My Net.py:Block")
        for length in (32, 64, 128)
        for record in comparison(target, seq_len=length)
    ]
    assert list(charts([*records])) == [RATIOS, "time-over-length-sdpa", "time-over-length-my-net-py-block"]


def test_causal_is_another_line_than_full() -> None:
    """Factors that only the case id contains keep slices separate."""
    causal = [
        check(case=(case := case_of(head_dim=width, causal=True)).case_id, spec=case.spec, sizes=sizes_of(case))
        for width in (16, 32, 64)
    ]
    full = [
        check(case=(case := case_of(head_dim=width)).case_id, spec=case.spec, sizes=sizes_of(case), max_bound_ratio=0.9)
        for width in (16, 32)
    ]
    (series,) = chart_series([*causal, *full])
    assert "causal" in series.fixed
    assert [point.y for point in series.relative] == [0.11, 0.11, 0.11]


def test_the_worst_of_several_inputs_is_drawn() -> None:
    """One point a series and d_k: the largest error of its inputs."""
    records: list[Record] = [
        check(
            case=(case := case_of(head_dim=width)).case_id, spec=case.spec, sizes=sizes_of(case), max_bound_ratio=ratio
        )
        for width in (16, 32, 64)
        for ratio in (0.1, 0.3, 0.2)
    ]
    (series,) = chart_series(records)
    assert [(point.x, point.y) for point in series.relative] == [(16, 0.3), (32, 0.3), (64, 0.3)]


@pytest.mark.parametrize("error", [0.0, math.inf, math.nan])
def test_what_a_logarithm_cannot_show_is_said(error: float) -> None:
    """Exact and not finite results are left out and counted in the caption."""
    records: list[Record] = [
        check(case=(case := case_of(head_dim=width)).case_id, spec=case.spec, sizes=sizes_of(case), max_abs_error=1e-6)
        for width in (16, 32, 64)
    ]
    records[0] = msgspec.structs.replace(records[0], max_bound_ratio=error, max_abs_error=error)
    (series,) = chart_series(records)
    assert "1 point not drawn (error zero or not finite)" in series.fixed
    assert (len(series.relative), len(series.absolute)) == (2, 2)


def test_the_baseline_is_first_and_so_black() -> None:
    """A name has the same place, hence colour, in all charts of a run."""
    assert series_names(quick_records())[0] == "torch"


def test_no_two_series_look_the_same() -> None:
    """Colour and shape together are unique for more arms than there are colours, and only the baseline is black."""
    names = [f"arm {number}" for number in range(12)]
    shown, colours, shapes = looks(names, names)
    assert len(set(zip(colours, shapes, strict=True))) == len(shown) == 12
    assert colours.count("#000000") == 1


@pytest.mark.parametrize("low", [1e-7, 0.03, 0.8, 0.97, 0.9999, 15.0])
@pytest.mark.parametrize("factor", [1.001, 1.02, 1.1, 1.5, 3.0, 10.0, 1e3, 1e6])
def test_axes_always_have_enough_marks(low: float, factor: float) -> None:
    """From a ratio of a thousandth to six decades: some marks, not too many, all inside."""
    values = ticks(low, low * factor)
    assert 3 <= len(values) <= 9
    assert all(low * 0.999999 <= value <= low * factor * 1.000001 for value in values)
    assert len(set(values)) == len(values)
