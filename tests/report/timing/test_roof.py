"""The chart of the roof: a labelled row per case, and the share of the record for every bar."""

from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.report.text.svg import chart_definition
from sdpa_onnx.report.timing.roof_chart import roof_chart
from sdpa_onnx.report.timing.roof_points import roof_picture
from tests.report.synthetic import header, quick_records


def test_every_case_has_a_row_and_every_arm_a_bar() -> None:
    """The shares are those of the records, also if all have one d_k, and no two rows have the same label."""
    records = [
        one for one in quick_records() if isinstance(one, TimingRecord) and one.sizes.head_dim == 64 and one.roof_share
    ]
    picture = roof_picture(records, header().ceilings)
    assert picture is not None
    assert len({case.label for case in picture.cases}) == len(picture.cases) > 2
    drawn = [bar.share for case in picture.cases for bar in case.bars]
    assert sorted(drawn) == sorted(one.roof_share for one in records if one.roof_share)
    assert not [case.label for case in picture.cases if "d_k 64" in case.label]


def test_every_row_has_its_label_in_the_chart() -> None:
    """The axis labels whole lanes and halves, which a browser prints as Python does; a row with two arms is a half."""
    picture = roof_picture(quick_records(), header().ceilings)
    assert picture is not None
    spec = chart_definition(roof_chart(picture, [bar.series for bar in picture.cases[0].bars]))
    axis = spec["concat"][0]["layer"][0]["encoding"]["y"]["axis"]
    assert len(axis["values"]) == len(picture.cases)
    assert all((2 * value).is_integer() for value in axis["values"])
    assert all(
        f'"{value:g}": "{case.label}"' in axis["labelExpr"]
        for value, case in zip(axis["values"], picture.cases, strict=True)
    )


def test_without_ceilings_there_is_no_picture() -> None:
    """A share of what is not known is not drawn."""
    assert roof_picture(quick_records(), {}) is None
