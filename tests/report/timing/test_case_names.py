"""A timed case has one name: in the first table, in the times, in the charts and in the sentences."""

from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.report.run.first_screen import first_screen
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.text.labels import usual_factors
from sdpa_onnx.report.timing.case_names import case_names
from sdpa_onnx.report.timing.comparisons import comparisons
from sdpa_onnx.report.timing.ratio_chart import ratio_chart
from sdpa_onnx.report.timing.ratio_points import ratio_picture
from sdpa_onnx.report.timing.roof_points import roof_picture
from tests.report.synthetic import comparison, header, quick_records

CEILINGS = {"gemm_flops_per_second": 1e11, "exps_per_second": 1e9}


def test_one_name_for_one_case_everywhere() -> None:
    """The rows of the first table, the sections of the times and the rows of both charts."""
    records = quick_records()
    groups = first_screen(records, header(), most_groups=100).groups.groups
    (times,) = [table for table in all_tables(records) if table.title == "Time of a call"]
    ratios, roof = ratio_picture(records), roof_picture(records, CEILINGS)
    assert ratios is not None
    assert roof is not None
    names = [group.label for group in groups]
    assert names == [section.heading for section in times.sections]
    assert names == [case.label for panel in ratios.panels for case in panel.cases]
    assert names == [case.label for case in roof.cases]


def test_the_name_of_a_case_is_its_own() -> None:
    """No two cases of a run share a name."""
    records = quick_records()
    found = comparisons(records)
    names = case_names(found, usual_factors(records))
    assert len({names.of([one.first]) for one in found}) == len(found)


def test_what_no_name_repeats_is_stated_with_the_table() -> None:
    """A name without its table would be incomplete; the note completes it."""
    records = quick_records()
    for table in all_tables(records):
        if table.title in ("Time of a call", "What a call costs", "Work of a call"):
            assert table.note.startswith("Unless stated: attention without projections, batch 1, length 512, d_k 64")


def test_the_stable_id_is_in_the_tooltip() -> None:
    """Records have the id of a case, not its name."""
    records: list[Record] = [*quick_records()]
    picture = ratio_picture(records)
    assert picture is not None
    drawn = str(ratio_chart(picture, picture.series).to_dict())
    ids = {record.case for record in records if isinstance(record, TimingRecord)}
    assert "case id" in drawn
    assert all(one in drawn for one in ids)


def test_the_central_case_has_its_length() -> None:
    """Next to causal cases it would be "not causal", as if it had every length."""
    lengths = (128, 256, 512)
    open_cases = [record for length in lengths for record in comparison(seq_len=length)]
    found = comparisons([*open_cases, *comparison(seq_len=256, causal=True)])
    names = case_names(found, usual_factors(open_cases))
    assert names.usual.startswith("attention without projections, batch 1, length 256")
    assert [names.of([one.first]) for one in found] == [
        "not causal, length 128",
        "not causal, length 256",
        "not causal, length 512",
        "causal",
    ]
