"""Records as rows of a table: one column for each figure, with the names of the JSON fields. Writes no file.

Sizes become columns of their own, the spec becomes columns that start with `spec_`, and each measure of saturation
becomes four columns. Lists and other maps become JSON text.
"""

import csv
import io
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Union, get_args, get_origin, get_type_hints

import msgspec

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.record_base import BaseRecord, Sizes
from sdpa_onnx.core.records.records import MeasuredValue, SaturationRecord

__all__ = ["Cell", "CellType", "RecordTable", "csv_text", "for_reading", "table_of"]

Cell = str | int | float | bool | None

_SPEC = "spec_"
# What a reader looks for first. These columns are kept even if they are empty.
_FIRST = ("kind", "outcome", "arm", "ratio", "ratio_low", "ratio_high", "verdict", "median_seconds")


class CellType(Enum):
    """The type of every cell of a column that is not None."""

    TEXT = str
    WHOLE = int
    REAL = float
    TRUTH = bool


class RecordTable(msgspec.Struct, frozen=True, kw_only=True):
    """Records as a table.

    Args:
        columns: Every column of the kinds of records in it, in order. They do not depend on what is known.
        rows: One tuple per record; None = not known, or no field of that kind.
    """

    columns: dict[str, CellType]
    rows: tuple[tuple[Cell, ...], ...]


def table_of(records: Sequence[BaseRecord]) -> RecordTable:
    """Lay records of any kinds out in rows.

    Example:
        >>> from sdpa_onnx.core.records.records import RuntimeRecord
        >>> table = table_of([RuntimeRecord(runtime="ort-cpu", version="1.32")])
        >>> dict(zip(table.columns, table.rows[0]))["version"]
        '1.32'
    """
    columns = {name: cell_type for kind in dict.fromkeys(map(type, records)) for name, cell_type in _columns(kind)}
    flat = [_cells(record) for record in records]
    measures = dict.fromkeys(name for cells in flat for name in cells if name not in columns)
    columns |= dict.fromkeys(measures, CellType.REAL)
    return RecordTable(columns=columns, rows=tuple(tuple(map(cells.get, columns)) for cells in flat))


def for_reading(table: RecordTable) -> RecordTable:
    """The same rows with the results first, and without the columns in which no record has anything.

    Example:
        >>> from sdpa_onnx.core.records.records import RuntimeRecord
        >>> list(for_reading(table_of([RuntimeRecord(runtime="ort-cpu", version="1.32")])).columns)
        ['kind', 'outcome', 'schema', 'parts', 'runtime', 'version', 'measures_time']
    """
    first = [name for name in _FIRST if name in table.columns]
    places = {name: place for place, name in enumerate(table.columns)}
    filled = [
        name
        for name, place in places.items()
        if name not in first and (not table.rows or any(row[place] not in (None, "") for row in table.rows))
    ]
    names = [*first, *filled]
    return RecordTable(
        columns={name: table.columns[name] for name in names},
        rows=tuple(tuple(row[places[name]] for name in names) for row in table.rows),
    )


def csv_text(records: Sequence[BaseRecord]) -> str:
    """Records as comma-separated values with a header, as in RFC 4180; an empty cell is not known.

    Example:
        >>> from sdpa_onnx.core.records.records import RuntimeRecord
        >>> csv_text([RuntimeRecord(runtime="ort-cpu", version="1.32")]).splitlines()[1]
        'runtime,2,,,1,,,,,ort-cpu,ok,,,1.32,true'
    """
    table = table_of(records)
    written = io.StringIO(newline="")
    writer = csv.writer(written)
    writer.writerow(table.columns)
    writer.writerows([_csv_cell(cell) for cell in row] for row in table.rows)
    return written.getvalue()


def _csv_cell(cell: Cell) -> Cell:
    """Numbers keep every digit; a truth value is spelt as in JSON."""
    return str(cell).lower() if isinstance(cell, bool) else cell


@cache
def _columns(kind: type[BaseRecord]) -> tuple[tuple[str, CellType], ...]:
    """Columns of a kind of records, without the measures of saturation, whose names are in the records."""
    found: dict[str, CellType] = {"kind": CellType.TEXT}
    for name, hint in get_type_hints(kind).items():
        options = _options(hint)
        if Sizes in options:
            found |= {part: _cell_type(type_) for part, type_ in get_type_hints(Sizes).items()}
        elif AttentionSpec in options:
            found |= {f"{_SPEC}{part}": _cell_type(type_) for part, type_ in get_type_hints(AttentionSpec).items()}
        elif not (issubclass(kind, SaturationRecord) and name == "measures"):
            found[name] = _cell_type(hint)
    return tuple((name, found[name]) for name in found)


def _cell_type(hint: object) -> CellType:
    options = [option for option in _options(hint) if option is not types.NoneType]
    return next((one for one in CellType if options == [one.value]), CellType.TEXT)


def _options(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _cells(record: BaseRecord) -> dict[str, Cell]:
    cells: dict[str, Cell] = {"kind": str(record.__struct_config__.tag)}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        match value:
            case Sizes():
                cells |= {part: getattr(value, part) for part in value.__struct_fields__}
            case AttentionSpec():
                cells |= {f"{_SPEC}{part.name}": _cell(getattr(value, part.name)) for part in fields(value)}
            case None if name == "spec":  # its columns are None
                pass
            case {} if isinstance(record, SaturationRecord) and name == "measures":
                cells |= _measures(value)
            case _:
                cells[name] = _cell(value)
    return cells


def _measures(measures: Mapping[str, MeasuredValue]) -> dict[str, Cell]:
    """Four columns for each measure: the value, and what `MeasuredValue` has beside it."""
    found: dict[str, Cell] = {}
    for name, measured in measures.items():
        found[name] = measured.value
        found |= {f"{name}_{part}": getattr(measured, part) for part in ("predicted", "standard_error", "z")}
    return found


def _cell(value: object) -> Cell:
    match value:
        case Enum():
            return str(value.value)
        case str() | bool() | int() | float() | None:
            return value
        case _:
            return msgspec.json.encode(value, order="sorted").decode() if value else ""
