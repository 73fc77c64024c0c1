"""A table before layout: text cells without widths, colours or markup."""

from dataclasses import dataclass

__all__ = ["Column", "Section", "Table"]


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
