"""What every Markdown page of ours is made of: tables, and text that cannot become markup."""

from collections.abc import Sequence

from sdpa_onnx.report.table import Table

__all__ = ["escaped", "table_block", "table_row"]


def table_block(table: Table, *, level: int = 2) -> str:
    """A table under its title; the heading of a section stands in its first row only."""
    heads = ([table.heading] if table.heading else []) + [column.head for column in table.columns]
    rules = (["---"] if table.heading else []) + ["---:" if column.is_number else "---" for column in table.columns]
    lines = [table_row([escaped(head) for head in heads]), table_row(rules)]
    for section in table.sections:
        for index, row in enumerate(section.rows):
            heading = [section.heading if index == 0 else ""] if table.heading else []
            lines.append(table_row([escaped(cell) for cell in (*heading, *row)]))
    note = ["", escaped(table.note)] if table.note else []
    footnotes = [f"- [{number}] {escaped(footnote)}" for number, footnote in enumerate(table.footnotes, 1)]
    return "\n".join(
        [f"{'#' * level} {escaped(table.title)}", "", *lines, *note, *([""] if footnotes else []), *footnotes]
    )


def table_row(cells: Sequence[str]) -> str:
    """One line of a table; the cells are escaped already."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Keep Markdown and HTML out of a reason or a name."""
    line = " ".join(text.split())
    for mark, safe in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("`", "\\`")):
        line = line.replace(mark, safe)
    return line
