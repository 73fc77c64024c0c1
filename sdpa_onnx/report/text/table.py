"""A table before layout: text cells without widths, colours or markup.

It is defined once, by rows whose cells have the names of their columns; `layout`, `markdown_parts` and
../page/page.html lay it out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Column", "Section", "Table", "facts_table", "text_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its head, and whether it has numbers (right-aligned, never broken)."""

    head: str
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows that belong together under one heading."""

    heading: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table in sections.

    Args:
        title: What it shows.
        heading: What the section headings name, such as "case".
        columns: The columns of every section; each row has as many cells.
        sections: The rows.
        note: How to read it, one or two sentences.
        footnotes: Texts of the marks [1], [2] ... in the cells, in this order.
        keys: Number of first columns that name a row; a narrow screen repeats them before the columns that do not fit.
    """

    title: str
    heading: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    note: str = ""
    footnotes: tuple[str, ...] = ()
    keys: int = 1

    @property
    def rows(self) -> int:
        """Rows of all sections."""
        return sum(len(section.rows) for section in self.sections)


def text_table(
    title: str,
    rows: Iterable[Mapping[str, str]],
    *,
    heading: str = "",
    numbers: Collection[str] = (),
    note: str = "",
    footnotes: Sequence[str] = (),
    keys: int = 1,
) -> Table:
    """A table of rows whose cells are named by the heads of their columns, in this order.

    Args:
        rows: Each with every column, and with `heading` if there is one.
        heading: The cell that is not a column but the heading above the row; rows with the same one come together.
        numbers: Heads of the columns of numbers.
        title, note, footnotes, keys: As in `Table`.
    """
    sections: dict[str, list[tuple[str, ...]]] = {}
    heads: list[str] = []
    for row in rows:
        heads = heads or [head for head in row if head != heading]
        sections.setdefault(row.get(heading, ""), []).append(tuple(row[head] for head in heads))
    return Table(
        title=title,
        heading=heading,
        columns=tuple(Column(head=head, is_number=head in numbers) for head in heads),
        sections=tuple(Section(heading=name, rows=tuple(cells)) for name, cells in sections.items()),
        note=note,
        footnotes=tuple(footnotes),
        keys=keys,
    )


def facts_table(title: str, facts: Iterable[tuple[str, str]]) -> Table:
    """Names with their values, such as those of the environment."""
    return text_table(title, ({"what": name, "value": value} for name, value in facts))
