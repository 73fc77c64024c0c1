"""The table of a choice among forms: who was raced, what was worked around, and what was chosen."""

import msgspec

from sdpa_onnx.core.records.records import FormRecord, Outcome, Sizes
from sdpa_onnx.report.run.form_table import form_table, forms_to_print, limits_of_chosen
from sdpa_onnx.report.run.tables import all_tables

_SIZES = Sizes(batch_size=1, q_seq_len=1, kv_seq_len=1, head_dim=64, q_num_heads=8)


def _record(arm: str, **changes: object) -> FormRecord:
    figures = {"site": "decoder", "runtime": "ort-cpu", "opset": 23, "sizes": _SIZES, "past_seq_len": 1024}
    return FormRecord(arm=arm, form=arm, **{**figures, **changes})  # type: ignore[arg-type]


def test_a_row_says_how_fast_and_why_not() -> None:
    """An interval where it was paired, a plain ratio where it was left behind, a dash where it was not timed."""
    table = form_table(
        [
            _record("attention", median_seconds=0.001, ratio=1.0, ratio_low=0.99, ratio_high=1.01, chosen=True),
            _record("decomposed", median_seconds=0.002, ratio=2.0, ratio_low=2.0, ratio_high=2.0, reason="2.00 x."),
            _record("blocked", workarounds=("expand-mask", "finite-mask"), reason="Not timed."),
        ]
    )
    (section,) = table.sections
    assert section.heading == "decoder on ort-cpu, batch 1, 1 query, 1 key, 1024 in the cache"
    assert section.rows == (
        ("attention", "-", "1.00 ms", "1.00 [0.99, 1.01]", "yes"),
        ("decomposed", "-", "2.00 ms", "2.00", "2.00 x."),
        ("blocked", "expand-mask, finite-mask", "-", "-", "Not timed."),
    )


def test_what_all_rows_share_is_no_column() -> None:
    """The opset is in the note, no column of workarounds is empty, and a ratio is not repeated in words."""
    slow = "4.00 x the fastest in its first calls; not measured further."
    rows = [
        _record("blocked", ratio=1.0, chosen=True),
        _record("attention", ratio=2.0, reason="2.00 x the fastest."),
        _record("ort-mha", ratio=4.0, reason=slow),
    ]
    table = form_table(rows)
    assert [column.head for column in table.columns] == ["form", "time", "ratio [95 %]", "chosen"]
    assert [row[-1] for row in table.sections[0].rows] == ["yes", "-", "first calls only"]
    assert "opset 23. Ratio: " in table.note
    assert "First calls only: so slow there" in table.note
    both = form_table([*rows, _record("decomposed", opset=18)])
    assert [column.head for column in both.columns][:2] == ["form", "opset"]


def test_a_form_that_was_dropped_stands_with_what_is_not_ok() -> None:
    """Once, with its evidence."""
    dropped = _record("ort-gqa", outcome=Outcome.DISAGREES, reason="On ort-cpu form 'ort-gqa' is wrong.")
    tables = all_tables([dropped, _record("attention", median_seconds=1.0, ratio=1.0, chosen=True)])
    assert [table.title for table in tables] == ["Not ok", "Forms"]
    assert tables[0].sections[0].heading == "disagreeing forms"
    assert tables[0].sections[0].rows[0][-1] == "On ort-cpu form 'ort-gqa' is wrong."
    assert tables[1].rows == 1


def test_attentions_alike_are_told_once() -> None:
    """One table for those whose rows are the same, another for the one that differs; their limits in a line."""
    limits = tuple(
        f"On ort-cpu form 'attention' does not run for no {what}, mask (q, k) (case): refused." for what in "ab"
    )
    rows = [_record("attention", chosen=True, warnings=limits), _record("decomposed", warnings=("other",))]
    three = [msgspec.structs.replace(row, site=site) for site in ("a", "b", "c") for row in rows]
    three[-1] = msgspec.structs.replace(three[-1], reason="Slow.")
    told = forms_to_print(three)
    assert [(row.site, row.arm, row.warnings) for row in told] == [
        ("2 attentions (first: a)", "attention", ()),
        ("2 attentions (first: a)", "decomposed", ()),
        ("c", "attention", ()),
        ("c", "decomposed", ()),
    ]
    assert limits_of_chosen(three) == [
        "On ort-cpu form 'attention' does not run for no a (--json has the full text and 1 more)."
    ]
