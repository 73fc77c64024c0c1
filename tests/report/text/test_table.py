"""A table is defined once, by rows that name their cells, and every form of a report lays out the same cells."""

from sdpa_onnx.report.page.parts import page_table
from sdpa_onnx.report.text.layout import table_lines
from sdpa_onnx.report.text.markdown_parts import table_block
from sdpa_onnx.report.text.table import Column, Section, Table, facts_table, text_table

_ROWS = (
    {"case": "causal", "arm": "torch", "ms": "2.0"},
    {"case": "bool", "arm": "torch", "ms": "3.0"},
    {"case": "causal", "arm": "ort-cpu", "ms": "1.0"},
)


def test_cells_are_put_under_the_column_of_their_name() -> None:
    """The heading is no column, and the rows of one heading come together."""
    assert text_table("Times", _ROWS, heading="case", numbers=("ms",), note="Median.") == Table(
        title="Times",
        heading="case",
        columns=(Column(head="arm"), Column(head="ms", is_number=True)),
        sections=(
            Section(heading="causal", rows=(("torch", "2.0"), ("ort-cpu", "1.0"))),
            Section(heading="bool", rows=(("torch", "3.0"),)),
        ),
        note="Median.",
    )


def test_the_order_of_the_cells_of_a_row_does_not_matter() -> None:
    """A cell cannot get into the column of another."""
    turned = [dict(reversed(row.items())) for row in _ROWS]
    assert text_table("Times", [_ROWS[0], *turned[1:]], heading="case") == text_table("Times", _ROWS, heading="case")


def test_a_table_without_rows_has_no_columns() -> None:
    """Such a table is left out of a report by its number of rows."""
    assert text_table("Times", ()).rows == 0


def test_text_markdown_and_page_show_the_same_cells() -> None:
    """One definition, one renderer for each form."""
    table = text_table("Times", _ROWS, heading="case", numbers=("ms",))
    text = "\n".join(line.text for line in table_lines(table, 60))
    page = page_table(table).table
    assert page == table
    for cell in (cell for row in _ROWS for cell in row.values()):
        assert cell in text
        assert cell in table_block(table)


def test_facts_are_a_table_of_names_and_values() -> None:
    """The environment of a run has the same table in Markdown and on the page."""
    assert table_block(facts_table("Environment", [("threads", "2")])) == (
        "## Environment\n\n| what | value |\n| --- | --- |\n| threads | 2 |"
    )
