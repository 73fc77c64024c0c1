"""Tables and sentences as plain lines of a given width; numbers are never cut or broken.

Rules are ASCII, so that a pipe, a log and a narrow terminal show the same. The tables of rich shrink number columns
when space is short; these do not.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sdpa_onnx.report.text.table import Column, Table

__all__ = ["TextLine", "Tone", "bullet", "paragraph", "table_lines"]

_WIDE_GAP, _NARROW_GAP = 2, 1
_LEAST_TEXT_WIDTH = 12

# Spaces at which a line must not break: inside an interval, and between a number and its unit.
_TIGHT = re.compile(
    r"(?:\d x )?\[[\d., -]+\]|\d (?:%|ms|µs|ns|s|[TGM]?FLOP/s)(?![a-z])|\b(?:d_k|batch|length|opset|seed) \d+"
)


class Tone(StrEnum):
    """The role of a line, from which its colour follows."""

    TITLE = "title"
    HEAD = "head"
    SECTION = "section"
    ROW = "row"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """One line of output, without its newline."""

    text: str
    tone: Tone


def paragraph(text: str, width: int, *, indent: str = "", hanging: str | None = None) -> list[str]:
    """Break a text at words; an interval or a number with its unit stays on one line."""
    later = indent if hanging is None else hanging
    broken = textwrap.wrap(
        _held_together(text),
        max(width, _LEAST_TEXT_WIDTH),
        initial_indent=indent,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in broken]


def bullet(text: str, width: int) -> list[str]:
    """A sentence as a list item."""
    return paragraph(text, width, indent="- ", hanging="  ")


def table_lines(table: Table, width: int) -> list[TextLine]:
    """Lay out a table; text columns shrink to fit, and columns that still do not fit follow in further blocks.

    A block overflows only if its row names and one column are wider than the screen.
    """
    lines = [TextLine(text=text, tone=Tone.TITLE) for text in paragraph(table.title, width)]
    for number, block in enumerate(_blocks(table, width)):
        lines += [TextLine(text="", tone=Tone.ROW)] * (number > 0)
        lines += _block_lines(block, width)
    lines += [TextLine(text=text, tone=Tone.NOTE) for text in paragraph(table.note, width)]
    for number, footnote in enumerate(table.footnotes, 1):
        lines += [
            TextLine(text=text, tone=Tone.NOTE) for text in paragraph(f"[{number}] {footnote}", width, hanging="    ")
        ]
    return lines


def _blocks(table: Table, width: int) -> list[Table]:
    """Split a table by columns, so that each block fits; the columns that name a row are in each."""
    least = _least_widths(table, [_natural_width(table, index) for index in range(len(table.columns))])
    names = list(range(table.keys))
    blocks = [names]
    for index in range(table.keys, len(table.columns)):
        block = [*blocks[-1], index]
        is_full = sum(least[one] for one in block) + _NARROW_GAP * (len(block) - 1) > width
        if is_full and len(blocks[-1]) > len(names):
            blocks.append([*names, index])
        else:
            blocks[-1] = block
    return [_with_columns(table, block) for block in blocks]


def _with_columns(table: Table, indices: Sequence[int]) -> Table:
    sections = tuple(
        replace(section, rows=tuple(tuple(row[index] for index in indices) for row in section.rows))
        for section in table.sections
    )
    return replace(table, columns=tuple(table.columns[index] for index in indices), sections=sections)


def _block_lines(table: Table, width: int) -> list[TextLine]:
    gap, widths = _fit(table, width)
    heads = tuple(_breakable(column.head) for column in table.columns)
    lines = [
        TextLine(text=text, tone=Tone.HEAD) for text in _row_lines(table.columns, heads, widths, gap, is_head=True)
    ]
    lines.append(TextLine(text=gap.join("-" * one for one in widths), tone=Tone.HEAD))
    for section in table.sections:
        if section.heading:
            lines += [TextLine(text=text, tone=Tone.SECTION) for text in paragraph(f"{section.heading}:", width)]
        for row in section.rows:
            lines += [TextLine(text=text, tone=Tone.ROW) for text in _row_lines(table.columns, row, widths, gap)]
    return lines


def _fit(table: Table, width: int) -> tuple[str, list[int]]:
    """Choose the gap and the widths: a wide gap, else a narrow gap, else narrower text columns."""
    natural = [_natural_width(table, index) for index in range(len(table.columns))]
    for gap in (_WIDE_GAP, _NARROW_GAP):
        if sum(natural) + gap * (len(natural) - 1) <= width:
            return " " * gap, natural
    return " ", _narrowed(table, natural, width - _NARROW_GAP * (len(natural) - 1))


def _narrowed(table: Table, natural: Sequence[int], room: int) -> list[int]:
    """Shrink the widest text column until the row fits or no text column can shrink."""
    widths = list(natural)
    floors = _least_widths(table, natural)
    while sum(widths) > room:
        spare = [one - floor for one, floor in zip(widths, floors, strict=True)]
        if max(spare) <= 0:
            break
        widest = max(range(len(widths)), key=lambda index: (spare[index] > 0, widths[index]))
        widths[widest] -= 1
    return widths


def _least_widths(table: Table, natural: Sequence[int]) -> list[int]:
    return [
        one if column.is_number else min(one, max(_LEAST_TEXT_WIDTH, _longest_word(_breakable(column.head))))
        for column, one in zip(table.columns, natural, strict=True)
    ]


def _natural_width(table: Table, index: int) -> int:
    cells = [row[index] for section in table.sections for row in section.rows]
    return max([_longest_word(_breakable(table.columns[index].head)), *(len(cell) for cell in cells)])


def _row_lines(
    columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], gap: str, *, is_head: bool = False
) -> list[str]:
    stacks = [
        [cell] if column.is_number and not is_head else _folded(cell, width)
        for column, cell, width in zip(columns, cells, widths, strict=True)
    ]
    height = max(len(stack) for stack in stacks)
    # Heads are aligned at the bottom, cells at the top.
    padded = [[""] * (height - len(s)) + s if is_head else s + [""] * (height - len(s)) for s in stacks]
    return [
        gap.join(
            text.rjust(width) if column.is_number else text.ljust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        ).rstrip()
        for line in zip(*padded, strict=True)
    ]


def _folded(text: str, width: int) -> list[str]:
    """Break a cell at words; a word wider than the cell is broken too, so that no text is lost."""
    lines = textwrap.wrap(_held_together(text), width, break_long_words=True, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines] or [""]


def _held_together(text: str) -> str:
    """Replace the spaces at which a line must not break by a null character."""
    return _TIGHT.sub(lambda found: found[0].replace(" ", "\0"), text)


def _breakable(head: str) -> str:
    """Allow a break before a slash: useful GFLOP /s."""
    return re.sub(r"(?<=\w)/", " /", head)


def _longest_word(text: str) -> int:
    return max((len(word) for word in text.split()), default=0)
