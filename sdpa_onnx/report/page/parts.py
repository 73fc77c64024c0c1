"""Parts that every page has: tables and data cut to what a page embeds, the environment, the colour of an outcome."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from sdpa_onnx.core.records.records import Outcome, Record
from sdpa_onnx.report.page.content import PageData, PageSection, PageTable, PageText, PageTone
from sdpa_onnx.report.text.table import Section, Table, facts_table
from sdpa_onnx.report.text.tally import outcome_of

__all__ = ["page_data", "page_table", "plain_data", "tone_of", "with_facts"]

# Greatest numbers of rows in one table and of records in a page, and of bytes of these records.
_MOST_ROWS = 1_000
_MOST_RECORDS, _MOST_BYTES = 2_000, 900_000
# Fields that only the store needs.
_OF_STORE = frozenset({"cell", "job", "parts", "schema", "samples"})
_TONES = {
    Outcome.OK: PageTone.GOOD,
    Outcome.DISAGREES: PageTone.BAD,
    Outcome.FAILED: PageTone.BAD,
    Outcome.UNSUPPORTED: PageTone.DOUBT,
    Outcome.SKIPPED: PageTone.DOUBT,
}


def tone_of(outcome: Outcome) -> PageTone:
    """The colour of the worst outcome."""
    return _TONES[outcome]


def page_table(
    table: Table,
    *,
    anchor: str = "",
    is_folded: bool = False,
    commands: frozenset[str] = frozenset(),
    links: frozenset[str] = frozenset(),
) -> PageTable:
    """A table of the report; a long one is cut, and the page says so.

    Args:
        anchor: Its id, if its title is not unique in the page.
        commands, links: As in `PageTable`.
    """
    left, sections = _MOST_ROWS, []
    for section in table.sections:
        rows = section.rows[:left]
        left -= len(rows)
        if rows:
            sections.append(Section(heading=section.heading, rows=rows))
    return PageTable(
        table=replace(table, sections=tuple(sections)),
        anchor=anchor or _anchor(table.title),
        is_folded=is_folded,
        commands=commands,
        links=links,
        total=table.rows,
    )


def _anchor(title: str) -> str:
    return "table-" + "".join(one if one.isalnum() else "-" for one in title.lower())


def page_data(records: Sequence[Record], source: str = "") -> PageData:
    """The records that the page contains: those that are not ok first, then in order, up to a size.

    Args:
        source: The file with all of them, next to the page; "" = there is none.
    """
    ordered = sorted(records, key=lambda record: outcome_of(record) is Outcome.OK)
    return plain_data(map(_plain, ordered), len(records), source)


def plain_data(rows: Iterable[Mapping[str, Any]], total: int, source: str = "") -> PageData:
    """The first rows of data, up to a number and a size.

    Args:
        rows: Each with its `kind`.
        total: Their number.
    """
    kept: list[Mapping[str, Any]] = []
    left = _MOST_BYTES
    for row in itertools.islice(rows, _MOST_RECORDS):
        left -= len(msgspec.json.encode(row))
        if left < 0:
            break
        kept.append(row)
    return PageData(rows=tuple(kept), total=total, source=source)


def with_facts(facts: Iterable[tuple[str, str]], command: str) -> PageSection:
    """The last section: the environment, and the command that repeats everything ("" = unknown)."""
    return PageSection(
        anchor="provenance",
        title="Environment and how to repeat",
        blocks=(
            page_table(facts_table("Environment", facts)),
            *([PageText(lines=(command,), is_code=True)] if command else []),
        ),
    )


def _plain(record: Record) -> dict[str, Any]:
    """A record without what is empty and without what only the store needs."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {
        name: value for name, value in fields.items() if name not in _OF_STORE and value not in (None, "", [], {}, ())
    }
