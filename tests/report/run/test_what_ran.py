"""A requested operator that did not run is marked wherever a time or a verdict is printed."""

import io

import msgspec
from rich.console import Console

from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.report.run.markdown import render_summary
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.run.terminal import print_tables
from sdpa_onnx.report.text.labels import arm_in_words, is_expanded, series_name
from tests.report.synthetic import check, comparison, header, tell

INTO_59 = "Attention was expanded into 59 nodes."
IN_BFLOAT16 = "OpenVINO ran this float32 model in bfloat16."
CASTS = "7 float16 nodes ran in float32."


def expanded_comparison() -> list[TimingRecord]:
    """torch unchanged; the decomposed graph with casts; Attention expanded and in bfloat16."""
    torch, decomposed, attention = comparison()
    return [
        torch,
        msgspec.structs.replace(decomposed, expanded={"Softmax": 5}, warnings=(CASTS,)),
        msgspec.structs.replace(attention, expanded={"Attention": 59}, warnings=(INTO_59, IN_BFLOAT16)),
    ]


def printed(records: list[Record], width: int = 100) -> str:
    raw = io.StringIO()
    print_tables(records, Console(file=raw, width=width))
    return raw.getvalue()


def test_a_timing_row_says_what_ran() -> None:
    """The row of an expanded operator has the note and the marks; the others only their own marks."""
    (table,) = [table for table in all_tables(expanded_comparison()) if table.title == "Time of a call"]
    assert [row[0] for section in table.sections for row in section.rows] == [
        "torch",
        "ort-cpu decomposed 18 [1]",
        "ort-cpu attention 23 (expanded) [2] [3]",
    ]
    assert table.footnotes == (CASTS, INTO_59, IN_BFLOAT16)


def test_footnotes_stand_under_the_table() -> None:
    """Terminal and Markdown print each footnote behind its mark."""
    text = printed(list(expanded_comparison()))
    assert "attention 23" in text
    assert f"\n[1] {CASTS}\n[2] {INTO_59}\n[3] {IN_BFLOAT16}\n" in text
    summary = render_summary(expanded_comparison(), header(), [])
    assert f"\n\n- [1] {CASTS}\n- [2] {INTO_59}\n- [3] {IN_BFLOAT16}\n\n" in summary
    assert "| ort-cpu attention 23 (expanded) [2] [3] |" in summary


def test_without_warnings_there_is_no_mark() -> None:
    """An operator that ran as requested has no marks and no footnotes."""
    (table,) = [table for table in all_tables(comparison()) if table.title == "Time of a call"]
    assert table.footnotes == ()
    assert "[1]" not in printed(list(comparison()))


def test_no_sentence_calls_an_expanded_operator_by_its_bare_name() -> None:
    """In the findings, too, the name of the arm shows that something else ran instead."""
    lines = tell(expanded_comparison())
    told = [line for line in lines if "opset 23" in line or "attention 23" in line]
    assert len(told) >= 3
    for line in told:
        bare = line.replace("(opset 23, expanded)", "").replace("attention 23 (expanded)", "")
        assert "opset 23" not in bare
        assert "attention 23" not in bare


def test_names_of_what_ran() -> None:
    """An expanded attention is named; an expanded Softmax inside a decomposed graph is a footnote's matter."""
    torch, decomposed, attention = expanded_comparison()
    assert [is_expanded(record) for record in (torch, decomposed, attention)] == [False, False, True]
    assert arm_in_words(attention) == "Attention (opset 23, expanded) on ort-cpu"
    assert arm_in_words(decomposed) == "the decomposed graph (opset 18) on ort-cpu"
    assert series_name(check(expanded={"GroupQueryAttention": 9})) == "ort-cpu attention 23 (expanded)"
    assert series_name(check()) == "ort-cpu attention 23"


def test_kept_and_expanded_checks_stand_in_rows_of_their_own() -> None:
    """One arm of which some cases are expanded is two rows of the table of agreement."""
    (table,) = all_tables([check(), check(expanded={"Attention": 59})])
    rows = [row[:2] for section in table.sections for row in section.rows]
    assert rows == [("ort-cpu attention 23", "1"), ("ort-cpu attention 23 (expanded)", "1")]
