"""The result of a command as text: the verdict in one sentence, then details, then tables.

Decides nothing, and formats no record.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sdpa_onnx.report.text.layout import TextLine, Tone, bullet, paragraph, table_lines
from sdpa_onnx.report.text.table import Table

__all__ = ["ResultText", "result_lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultText:
    """What a command has to say.

    Args:
        verdict: One sentence, printed always.
        details: Sentences, each said once; one that starts with two spaces is indented and never broken, such as a
            command. A table among them is indented too.
        tables: Every row and what else is to be said; printed only if requested.
    """

    verdict: str
    details: tuple[str | Table, ...] = ()
    tables: tuple[str | Table, ...] = ()


def result_lines(result: ResultText, width: int, *, with_details: bool, with_tables: bool) -> Iterator[TextLine]:
    """Lay out a result.

    Args:
        result: The result.
        width: Columns of the terminal.
        with_details: Whether to print more than the verdict.
        with_tables: Whether to print the tables, too.
    """
    for text in paragraph(result.verdict, width):
        yield TextLine(text=text, tone=Tone.TITLE)
    for detail in result.details if with_details else ():
        yield from (TextLine(text=text, tone=Tone.ROW) for text in _detail_lines(detail, width))
    for table in result.tables if with_tables else ():
        if isinstance(table, str):
            yield from (TextLine(text=text, tone=Tone.ROW) for text in _detail_lines(table, width))
            continue
        yield TextLine(text="", tone=Tone.ROW)
        yield from table_lines(table, width)


def _detail_lines(detail: str | Table, width: int) -> list[str]:
    if isinstance(detail, Table):
        return [f"  {line.text}".rstrip() for line in table_lines(detail, width - 2)]
    return [detail] if detail.startswith("  ") else bullet(detail, width)
