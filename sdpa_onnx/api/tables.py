"""Records as a data frame of pandas or polars, or as CSV, for which no library is needed."""

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from sdpa_onnx.api.arguments import listed
from sdpa_onnx.errors import MissingPackageError, PlanError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from sdpa_onnx.core.records.flat_rows import RecordTable
    from sdpa_onnx.core.records.record_base import BaseRecord

__all__ = ["TableLibrary", "to_csv", "to_table"]

TableLibrary = Literal["pandas", "polars"]

_LIBRARIES: tuple[TableLibrary, ...] = ("pandas", "polars")


@overload
def to_table(records: "Sequence[BaseRecord]", *, library: Literal["pandas"]) -> "pd.DataFrame": ...
@overload
def to_table(records: "Sequence[BaseRecord]", *, library: Literal["polars"]) -> "pl.DataFrame": ...
@overload
def to_table(records: "Sequence[BaseRecord]", *, library: None = None) -> "pd.DataFrame | Any": ...


def to_table(records: "Sequence[BaseRecord]", *, library: TableLibrary | None = None) -> Any:
    """Lay records out in a data frame: one row per record, one column per figure.

    Columns have the names of the JSON fields, with the units in them. Sizes such as `q_seq_len` are columns, the spec
    is `spec_q_num_heads` and so on, and lists and maps are JSON text. What is not known is missing (pandas: NaN or
    NA, polars: null). The results are first (outcome, arm, ratio, verdict, median); a column that is empty in all
    records is left out, other than in `to_csv`.

    Args:
        records: Records of any kinds, see `verify`, `bench` and the others.
        library: "pandas" or "polars"; None = pandas if it is installed, else polars.

    Raises:
        MissingPackageError: If the library, or either, is not installed.
        PlanError: If there is no such library, or something is no record.

    Example:
        >>> frame = to_table(find_attention(export(spec)))  # doctest: +SKIP
        >>> frame[["node", "spec_q_num_heads"]]  # doctest: +SKIP
    """
    from sdpa_onnx.core.records.flat_rows import for_reading, table_of

    table = for_reading(table_of(_checked(records)))
    return _pandas_frame(table) if _installed(library) == "pandas" else _polars_frame(table)


def to_csv(records: "Sequence[BaseRecord]", path: str | os.PathLike[str]) -> Path:
    """Write records as comma-separated values in UTF-8, with every column, also those that are empty.

    An empty cell is not known.

    Args:
        records: Records of any kinds.
        path: The file; it is replaced in one step.

    Returns:
        The path of the file.

    Raises:
        FolderError: If the file cannot be written.
        PlanError: If something is no record.
    """
    from sdpa_onnx.core.records.flat_rows import csv_text
    from sdpa_onnx.graph.files.whole_file import write_whole

    return write_whole(Path(path), csv_text(_checked(records)).encode())


def _checked(records: "Sequence[BaseRecord]") -> "tuple[BaseRecord, ...]":
    """The records, each of which is one.

    Raises:
        PlanError: If there is something else.
    """
    from sdpa_onnx.core.records.record_base import BaseRecord

    found: tuple[object, ...] = listed("records", records)
    other = next((type(one).__name__ for one in found if not isinstance(one, BaseRecord)), None)
    if other is not None:
        raise PlanError(
            f"A {other} is not a record.", hint="Give the records that verify, bench and the others return."
        )
    return tuple(one for one in found if isinstance(one, BaseRecord))


def _installed(library: TableLibrary | None) -> TableLibrary:
    """The library to use."""
    if library is not None and library not in _LIBRARIES:
        raise PlanError(f"There is no table library '{library}'.", hint=f"Known: {', '.join(_LIBRARIES)}.")
    wanted = _LIBRARIES if library is None else (library,)
    found = next((name for name in wanted if importlib.util.find_spec(name) is not None), None)
    if found is None:
        raise MissingPackageError(
            f"A table needs {' or '.join(wanted)}, which is not installed.",
            hint=f"Run: pip install {wanted[0]}. `to_csv` needs neither.",
        )
    return found


def _pandas_frame(table: "RecordTable") -> "pd.DataFrame":
    """Integers and truth values get the types of pandas that can be missing."""
    import pandas as pd

    from sdpa_onnx.core.records.flat_rows import CellType

    types = {CellType.WHOLE: "Int64", CellType.TRUTH: "boolean", CellType.REAL: "float64", CellType.TEXT: "object"}
    columns = zip(*table.rows, strict=True) if table.rows else ((),) * len(table.columns)
    return pd.DataFrame(
        {
            name: pd.Series(list(cells), dtype=types[cell_type])
            for (name, cell_type), cells in zip(table.columns.items(), columns, strict=True)
        }
    )


def _polars_frame(table: "RecordTable") -> "pl.DataFrame":
    import polars as pl

    from sdpa_onnx.core.records.flat_rows import CellType

    types = {
        CellType.WHOLE: pl.Int64(),
        CellType.TRUTH: pl.Boolean(),
        CellType.REAL: pl.Float64(),
        CellType.TEXT: pl.String(),
    }
    schema = {name: types[cell_type] for name, cell_type in table.columns.items()}
    return pl.DataFrame(list(table.rows), schema=schema, orient="row")
